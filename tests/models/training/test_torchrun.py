"""Processes that torchrun starts end with the weights of one, and end as one does."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from common.errors import UsageError
from common.locks import LOCK
from common.settings import ROOT
from models.config.networks import TrainingConfig
from models.training.loop import CHECKPOINT, METRICS
from models.training.torchrun import ENDED, check_processes, launched
from models.training.weights import load_tensors
from tests.command_line import call

SAGE = "cross_config_sage"
MODELS = f'--set=layout.models=["{SAGE}","layout_boosting"]'
SETS = (MODELS, "--set=threads=1", f"--set={SAGE}.graphs_per_step=2")


def words(tree: Path, out: Path, *keys: str) -> list[str]:
    """A training of two graphs a step on the tiny tree."""
    sets = [*SETS, *(f"--set={SAGE}.training.{key}" for key in keys)]
    place = ["--collection", "layout:xla:random", "--data", str(tree), "--out", str(out)]
    return ["train", *place, "--recipe", "smoke", *sets]


def start(words: Sequence[str], *options: str) -> "subprocess.Popen[str]":
    """Start `python -m pipeline WORDS` by torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*launcher, "-m", "pipeline", *words], cwd=ROOT, stdout=pipe, stderr=pipe, text=True
    )


def torchrun(words: Sequence[str]) -> tuple[int, str, list[str]]:
    """Run on two processes; the exit code, what was printed, and the lines that say an error."""
    started = start(words, "--standalone", "--nproc-per-node=2")
    out, err = started.communicate(timeout=240)
    return started.returncode, out, [li for li in err.splitlines() if li.startswith("error: ")]


def assert_same_weights(folder: Path, expected: Path) -> None:
    name = f"{SAGE}-seed0/model.safetensors"
    one, several = load_tensors(expected / name)[0], load_tensors(folder / name)[0]
    assert one.keys() == several.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(several[key], tensor, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def one(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process ends with."""
    out = tmp_path_factory.mktemp("one") / "out"
    call(*words(tiny_tree, out, "pretrain_steps=4"))
    return out


@pytest.mark.slow
def test_two_processes_of_torchrun_end_with_the_weights_of_one(
    one: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, printed, errors = torchrun(words(tiny_tree, out, "pretrain_steps=4", "processes=2"))
    assert (code, errors) == (0, [])
    folders = [out / f"{name}-seed0" for name in (SAGE, "layout_boosting")]
    assert printed.splitlines() == [f"model       {folder}" for folder in folders]
    assert_same_weights(out, one)
    names = [{str(p.relative_to(folder)) for p in folder.rglob("*")} for folder in (out, one)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_two_machines_end_with_the_weights_of_one(
    one: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1")
    asked = words(tiny_tree, tmp_path / "out", "pretrain_steps=4", "processes=2")
    machines = [
        start(asked, *meeting, f"--master-port={port}", f"--node-rank={rank}") for rank in (0, 1)
    ]
    ends = [machine.communicate(timeout=240) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], ends
    assert_same_weights(tmp_path / "out", one)
    assert ends[1][0] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("processes=1",), f"{SAGE}.training.processes = 1: torchrun started 2 processes"),
        (("processes=2", "learning_rate=1e30"), "training: "),
    ],
)
def test_a_fault_is_said_once(
    keys: Sequence[str], expected: str, tiny_tree: Path, tmp_path: Path
) -> None:
    code, printed, errors = torchrun(words(tiny_tree, tmp_path / "out", *keys))
    assert code == 1  # torchrun's own; it lists those of the processes
    assert printed == ""
    assert len(errors) == 1 and errors[0].startswith(f"error: {expected}")


@pytest.mark.slow
def test_out_of_time_is_no_fault_and_a_fault_of_one_process_ends_both(
    tiny_tree: Path, tmp_path: Path
) -> None:
    asked = words(tiny_tree, tmp_path, "processes=2", "steps=1000000")
    code, _, errors = torchrun([*asked, "--max-minutes", "0.3"])
    assert (code, errors) == (0, [])
    folder = tmp_path / f"{SAGE}-seed0"
    held = {path.name for path in folder.iterdir()}
    assert held == {"config.toml", CHECKPOINT, METRICS, LOCK}
    (folder / CHECKPOINT).unlink()
    (folder / METRICS).unlink()
    (folder / METRICS).mkdir()  # the first process writes it, the other goes on with the next step
    code, _, errors = torchrun([*asked, "--resume"])
    assert code == 1
    assert sorted(errors)[0] == f"error: {folder / METRICS}: cannot be written: Is a directory"
    assert all(line == f"error: process 1: {ENDED}" for line in sorted(errors)[1:])


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Torchrun's words to the second of two processes on one machine."""
    values = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_other_commands_are_refused_in_one_line(
    second_of_two: pytest.MonkeyPatch, tiny_tree: Path
) -> None:
    assert call("audit", "--data", tiny_tree, expect=2) == ""
    second_of_two.setenv("RANK", "0")
    text = call("audit", "--data", tiny_tree, expect=2)
    assert text == "error: torchrun: of all commands, only `train` runs on several processes\n"


def test_one_process_of_torchrun_is_as_any_other(
    second_of_two: pytest.MonkeyPatch, tiny_tree: Path
) -> None:
    second_of_two.setenv("WORLD_SIZE", "1")
    second_of_two.setenv("RANK", "0")
    assert launched() is None
    assert "layout:xla:random" in call("audit", "--data", tiny_tree)


def test_processes_are_those_that_torchrun_started(second_of_two: pytest.MonkeyPatch) -> None:
    check_processes("m", TrainingConfig(processes=2))
    check_processes("boosting", None)
    with pytest.raises(UsageError, match=r"m.training.processes = 3: torchrun started 2"):
        check_processes("m", TrainingConfig(processes=3))
    second_of_two.delenv("TORCHELASTIC_RUN_ID")
    check_processes("m", TrainingConfig(processes=3))
