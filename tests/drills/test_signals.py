"""Ctrl-C and SIGTERM at every stage, and pipes whose reader has gone: one line, no orphans."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.processes import (
    POLL_S,
    START,
    Scene,
    Watched,
    descendants,
    finish,
    kind_of,
    lives,
    wait_for_handlers,
    wait_until_gone,
)

KEPT = "; the same command resumes"
ENDS = {signal.SIGINT: (130, "error: interrupted"), signal.SIGTERM: (143, "error: terminated")}
IN_EXEC = """
import sys, typer
from pipeline.cli import console
@console.command
def work(number: int) -> None:
    exec("import signal; signal.raise_signal(number)", {"number": number})
typer.run(work)
"""
CHATTER = """
from pipeline.cli import console
@console.command
def talk() -> None:
    for number in range(3):
        console.say(f"line {number}")
    print("done")
talk()
"""


def audit_of(tree: Path) -> list[str]:
    return [sys.executable, "-m", "pipeline", "audit", "--data", str(tree)]


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_a_signal_in_an_executed_text_ends_with_its_code(number: signal.Signals) -> None:
    """CPython would end by SIGINT after a KeyboardInterrupt that has left `exec`."""
    command = [sys.executable, "-c", IN_EXEC, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == ENDS[number]


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2, 0.4])
def test_a_signal_during_the_imports_is_one_line(
    number: signal.Signals, delay_s: float, tiny_tree: Path, tmp_path: Path
) -> None:
    # A command that is not over by then on any machine.
    words = "run", "--recipe", "smoke", "--data", str(tiny_tree), "--store", str(tmp_path / "store")
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_handlers(process.pid)
    time.sleep(delay_s)
    process.send_signal(number)
    lines = process.communicate()[1].splitlines()
    (error,) = (line for line in lines if not line.startswith(("stage: ", "device: ")))
    code, message = ENDS[number]
    assert process.returncode == code and error.startswith(message)


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "2>/dev/full"])
def test_a_closed_standard_error_changes_no_result(closed: str, tiny_tree: Path) -> None:
    command = audit_of(tiny_tree)
    whole = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    done = subprocess.run(shell, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert done.stdout == whole.stdout != b""


def test_a_full_standard_output_is_named(tiny_tree: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            audit_of(tiny_tree),
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "error: standard output: No space left on device"


def test_a_command_with_a_closed_standard_error_finishes() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", CHATTER]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=write, check=True)
    os.close(write)
    assert done.stdout == b"done\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_at_random_moments_leave_a_run_that_resumes(
    workers: int, calm: Scene, tmp_path: Path
) -> None:
    """DRILL_SIGNALS is the number of signals, and DRILL_SEED changes the moments."""
    rng = random.Random(int(os.environ.get("DRILL_SEED", "0")) + workers)
    longest_s = finish(calm.elsewhere(tmp_path / "first", workers=workers)).ended_s
    folders, scene = 0, calm.elsewhere(tmp_path / "0", workers=workers)
    for _ in range(int(os.environ.get("DRILL_SIGNALS", "20"))):
        number, watched = rng.choice(list(ENDS)), Watched(scene)
        wait_for_handlers(watched.process.pid)
        time.sleep(rng.uniform(0, longest_s) * rng.random())
        below = descendants(watched.process.pid)
        watched.send(number)
        code = watched.end()
        gone_by_s = time.monotonic() + 2
        while any(map(lives, below)):
            assert time.monotonic() < gone_by_s, "a process goes on"
            time.sleep(0.01)
        if code == 0:  # the run was over before the signal came
            watched.ends_as(calm)
            folders += 1
            scene = calm.elsewhere(tmp_path / str(folders), workers=workers)
            continue
        assert watched.is_refused(ENDS[number][0]).startswith(ENDS[number][1])
    Watched(scene).ends_as(calm)


def stages_to_stop_in(scene: Scene) -> list[str]:
    first: dict[str, str] = {}
    for _, stage in finish(scene).stages:
        first.setdefault(kind_of(stage), stage)
    return list(first.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_a_run_can_be_stopped_in_every_stage(
    number: signal.Signals, workers: int, calm: Scene, tmp_path: Path
) -> None:
    """It is stopped in one stage after the other."""
    stages = [START, *stages_to_stop_in(calm.elsewhere(tmp_path / "first", workers=workers))]
    scene = calm.elsewhere(tmp_path / "stopped", workers=workers)
    stopped = []
    for place, stage in enumerate(stages):
        # An earlier attempt may have finished the stage, so a later stage ends the wait as well.
        later = {kind_of(other) for other in stages[place:]}
        watched = Watched(scene)
        wait_for_handlers(watched.process.pid)
        while kind_of(watched.stage) not in later and watched.process.poll() is None:
            time.sleep(POLL_S)
            watched.look()
        below = descendants(watched.process.pid)
        if watched.process.poll() is None:
            watched.send(number)
        told_s = time.monotonic()
        if watched.end() == 0:
            continue  # the stage was over before the signal came
        code, line = ENDS[number]
        assert watched.is_refused(code) in (line, line + KEPT), stage
        assert watched.lines[-1].startswith(line), stage
        assert not list(scene.out.rglob(".*.tmp"))
        assert time.monotonic() - told_s < 30
        wait_until_gone(below)
        stopped.append(stage)
    assert len(stopped) >= len(stages) - 3 * workers, stopped
    Watched(scene).ends_as(calm)
