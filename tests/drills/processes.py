"""Start real `pipeline` processes and follow their stages, so that a drill can disturb a stage.

The module also compares the files of a disturbed run with those of an undisturbed run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.settings import ROOT
from pipeline.cli.console import STAGE_PREFIX

RECIPE = Path(__file__).with_name("drill.toml")
PATIENCE_S = 240.0
POLL_S = 0.002
START = "start"  # before the first stage: imports
_PLACES = re.compile(r" (?:\d+ files|on \S+:.*|(?:layout|tile):\S+.*)$")


@dataclass(frozen=True)
class Scene:
    """The folders of a run. `log` has two files per process: standard output and standard error."""

    data: Path
    out: Path
    store: Path
    log: Path
    workers: int = 1

    @classmethod
    def at(cls, folder: Path, data: Path) -> "Scene":
        folder.mkdir(parents=True, exist_ok=True)
        return cls(data, folder / "run", folder / "store", folder)

    def elsewhere(self, folder: Path, *, workers: int = 1) -> "Scene":
        return replace(Scene.at(folder, self.data), workers=workers)

    def run(self, *more: object) -> list[str]:
        words = ("run", "--data", self.data, "--recipe", RECIPE, "--out", self.out, "--resume")
        return [str(word) for word in (*words, "--workers", self.workers, *more)]


class Watched:
    """A running command. Its output goes to files, which are read while the command runs.

    Attributes:
        stages: The start of each stage in seconds, and the line of the stage without its folder.
    """

    def __init__(
        self, scene: Scene, words: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """Start a command in a new session, by default the run of the scene."""
        self._scene = scene
        number = len(list(scene.log.glob("*.err")))
        self._errors, output = (scene.log / f"{number}.{end}" for end in ("err", "out"))
        self.began, self.ended_s = time.monotonic(), 0.0
        self.stages: list[tuple[float, str]] = []
        self.lines: list[str] = []
        self._read_bytes = 0
        settings = {"PIPELINE_STORE": str(scene.store), "OMP_NUM_THREADS": "1"}
        with output.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *(words or scene.run())],
                cwd=ROOT,
                env={**os.environ, **settings, **(env or {})},
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def look(self) -> None:
        with self._errors.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return
        self._read_bytes += len(whole) + 1
        for line in whole.decode().split("\n"):
            if line.startswith(STAGE_PREFIX):
                passed_s = time.monotonic() - self.began
                stage = line.removeprefix(STAGE_PREFIX).partition(", into ")[0]
                self.stages.append((passed_s, stage))
            else:
                self.lines.append(line)

    @property
    def stage(self) -> str:
        return self.stages[-1][1] if self.stages else START

    def has_ended(self) -> bool:
        is_over = self.process.poll() is not None
        self.look()
        return is_over

    def has_begun(self, stages: Container[str]) -> bool:
        return any(stage in stages for _, stage in self.stages)

    def wait_for_stage(self, stages: Container[str]) -> bool:
        """Wait for one of some stages, and return False if the command ends before."""
        wait_until(lambda: self.has_ended() or self.has_begun(stages), "hangs before a stage")
        return self.has_begun(stages)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; Ctrl-C to its workers too, as a terminal does."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)

    def end(self) -> int:
        wait_until(self.has_ended, "a command hangs")
        self.ended_s = time.monotonic() - self.began
        return self.process.wait()

    def ends_as(self, calm: Scene) -> None:
        """Wait until it has ended well, with the bytes of an undisturbed run."""
        assert self.end() == 0, self.lines
        check_same(self._scene.out, calm.out)

    def is_refused(self, code: int = 1) -> str:
        """Wait until it has ended with one line of error, and return that."""
        assert self.end() == code, self.lines
        errors = [line for line in self.lines if line.startswith("error: ")]
        signs = ("Traceback", "Exception ignored", "Warning: ")
        is_plain = not any(sign in line for line in self.lines for sign in signs)
        assert len(errors) == 1 and is_plain, "\n".join(self.lines)
        assert "internal error" not in errors[0], errors
        return errors[0]


def finish(scene: Scene) -> Watched:
    watched = Watched(scene)
    assert watched.end() == 0, watched.lines
    return watched


def kind_of(stage: str) -> str:
    return _PLACES.sub("", stage)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = [int(text) for text in task.read_text().split()]
        except OSError:
            continue
        found += below + [inner for child in below for inner in descendants(child)]
    return found


def workers_of(pid: int) -> list[int]:
    """Return the processes that were forked from the one which has imported all."""
    servers = [child for child in descendants(pid) if b"forkserver" in words_of(child)]
    return [worker for server in servers for worker in descendants(server)]


def words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(is_true: Callable[[], object], fault: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, fault
        time.sleep(POLL_S)


def wait_until_gone(pids: Sequence[int]) -> None:
    """Wait until processes have ended. A zombie counts as ended."""
    wait_until(lambda: not any(map(lives, pids)), "a process outlives its parent")


def wait_for_handlers(pid: int) -> None:
    """Wait until a process handles SIGTERM itself. Before, Python has not started."""

    def has_handler() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"SigCgt:\s*(\w+)", status)[0], 16) >> (signal.SIGTERM - 1) & 1

    wait_until(has_handler, "never handles SIGTERM")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


MEASURED = {"report.json", "report.html", "report.png"}  # hold times and memory
TIMED = ("seconds", "cpu_seconds", "peak_mib")


def contents(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: b"" if name in MEASURED else path.read_bytes()
        for name, path in sorted(files.items())
        if path.name != ".lock"
    }


def told(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return {key: value for key, value in report.items() if key not in TIMED}


def check_same(out: Path, undisturbed: Path) -> None:
    check_same_store(out, undisturbed)
    assert told(out) == told(undisturbed)


def check_same_store(store: Path, undisturbed: Path) -> None:
    found, want = contents(store), contents(undisturbed)
    assert found.keys() == want.keys()
    other = [name for name in want if found[name] != want[name]]
    assert not other, other
