"""The output of a running command: a progress bar in a terminal, and lines elsewhere."""

import io
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from common.errors import OutOfTime
from common.progress import log, out_of_time, progress
from common.settings import ROOT
from pipeline.cli import console
from tests.support.command_line import stderr_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stages_of(*arguments: object) -> list[str]:
    lines = stderr_of(*arguments)
    return [line.removeprefix("stage: ") for line in lines if line.startswith("stage: ")]


def test_without_a_terminal_each_stage_says_that_it_begins(tiny_tree: Path, tmp_path: Path) -> None:
    model = ("--recipe", "smoke", "--model", "tile_linear", "--set", "tile.models=[tile_linear]")
    place = ("--collection", "tile:xla", "--out", tmp_path, "--data", tiny_tree)
    loading, *said = stages_of("train", *place, *model)
    assert loading == "load the libraries"  # said before anything that takes time
    folder = tmp_path / "tile_linear-seed0"
    assert said[-1] == f"train tile_linear on tile:xla, into {folder}"
    assert all(line.startswith("pack ") for line in said[:-1])  # unless the store had them
    assert stages_of("train", *place, *model, "--resume") == [loading]  # nothing is left to do
    said = stages_of("predict", "--run", folder, "--data", tiny_tree)
    assert said[-1] == "predict tile:xla/test"


def test_a_terminal_has_a_bar_and_no_such_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PROGRESS_AFTER_S", 0.0)

    @console.command
    def work() -> None:
        for done in range(3):
            progress("train", done, 2)

    shown = {}
    for kind in (Terminal, io.StringIO):
        stream = kind()
        monkeypatch.setattr(sys, "stderr", stream)
        work()
        shown[kind] = stream.getvalue()
    assert shown[io.StringIO] == "stage: train\n"
    assert "stage" not in shown[Terminal]
    assert "train" in shown[Terminal]
    # Long stages also print their progress.
    monkeypatch.setattr(console, "TOLD_EVERY_S", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    work()
    assert stream.getvalue() == "stage: train\nstage: train: 1 of 2\nstage: train: 2 of 2\n"


NAME = "gru\x1b]0;OWNED\x07\x1b[2J\x9b2J\r\n\u202etrain"


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize(
    "write",
    [
        lambda: console.show(NAME),
        lambda: console.say(NAME),
        lambda: console.print_table([NAME], [[NAME]]),
        lambda: console.print_result({NAME: NAME}, NAME, as_json=False),
        lambda: console.print_result({NAME: NAME}, as_json=True),
        lambda: console.print_rows([NAME], [[NAME]], as_json=False),
        lambda: console.tell_errors([NAME]),
        lambda: log.info(NAME),
        lambda: [progress(NAME, done, 2) for done in range(3)],
        lambda: Path(NAME).stat(),
    ],
)
def test_escapes_in_a_name_never_reach_the_terminal(
    write: Callable[[], object], stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PROGRESS_AFTER_S", 0.0)
    streams = stream(), stream()
    for name, opened in zip(("stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, opened)
    with suppress(typer.Exit):
        console.command(write)(debug=True)
    written = "".join(opened.getvalue() for opened in streams)
    assert "gru" in written
    assert not {*"\x07\x9b\u202e"} & {*written}
    assert not re.search("\x1b(?!\\[[0-9;?]*[a-zA-Z])|\x1b\\[2J", written)  # a bar has colours


def test_only_one_module_writes_to_the_terminal() -> None:
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        if path.name not in ("console.py", "__main__.py"):
            calls = re.findall(r"(?<![\w.])(?:typer\.echo|print)\(|sys\.std\w+", path.read_text())
            assert not calls, path


def test_packages_of_the_working_folder_do_not_take_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("models/__init__.py", "data.py"):
        (tmp_path / name).touch()
    words = [sys.executable, "-m", "pipeline", "runs", tmp_path, "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, check=True)


def test_a_model_in_the_working_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_net.py").touch()
    # A console script has its own folder on the path, and so has a program with its path.
    words = [sys.executable, ROOT / "pipeline/__main__.py", "plan", "--recipe", "smoke"]
    words += ["--set", 'layout.models=["my_net:Net"]']
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "module 'my_net' has no class 'Net'" in done.stderr


def test_the_console_script_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["scripts"].items()
    monkeypatch.setattr(sys, "argv", [name, "plan", "--help"])
    with pytest.raises(SystemExit) as ended:
        EntryPoint(name, target, "console_scripts").load()()
    assert ended.value.code == 0
    assert "Usage: fast-or-slow plan" in capsys.readouterr().out


def test_without_the_requirements_a_line_says_what_to_do() -> None:
    words = [sys.executable, "-S", "-m", "pipeline", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "run `make setup`, then .venv/bin/python -m pipeline" in done.stderr


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_library_that_makes_something_else_of_a_signal_does_not_hide_it(
    number: signal.Signals, line: str, is_swallowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @console.command
    def work() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as error:
            if not is_swallowed:
                raise ValueError("of a library") from error
        if out_of_time():
            raise OutOfTime("work")

    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with pytest.raises(typer.Exit) as left:
        work()
    assert (left.value.exit_code, stream.getvalue()) == (128 + number, f"error: {line}\n")


def test_ignored_ctrl_c_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    @console.command
    def work() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
