"""Ctrl-C and SIGTERM at every stage, and pipes whose reader has gone: one line, no orphans."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.processes import (
    POLL_S,
    Scene,
    Watched,
    descendants,
    finish,
    kind_of,
    wait_until_gone,
)

KEPT = "; the same command resumes"
ENDS = {signal.SIGINT: (130, "error: interrupted"), signal.SIGTERM: (143, "error: terminated")}
SLEEPER = """
import time
from pipeline.cli import console
@console.command
def wait(resume: bool = False) -> None:
    print("begun", flush=True)
    time.sleep(60)
wait(resume=True)
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


@pytest.mark.parametrize("number", ENDS, ids=lambda n: n.name)
def test_a_command_that_is_stopped_ends_with_one_line(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert ENDS[number][1] + KEPT in process.stderr.read().splitlines()


def test_a_command_with_a_closed_standard_error_finishes() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", CHATTER]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=write, check=True)
    os.close(write)
    assert done.stdout == b"done\n"


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
    stages = stages_to_stop_in(calm.elsewhere(tmp_path / "first", workers=workers))
    scene = calm.elsewhere(tmp_path / "stopped", workers=workers)
    stopped = []
    for place, stage in enumerate(stages):
        # An earlier attempt may have finished the stage, so a later stage ends the wait as well.
        later = {kind_of(other) for other in stages[place:]}
        watched = Watched(scene)
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
        assert watched.is_refused(code) == line + KEPT == watched.lines[-1], stage
        assert not list(scene.out.rglob(".*.tmp"))
        assert time.monotonic() - told_s < 30
        wait_until_gone(below)
        stopped.append(stage)
    assert len(stopped) >= len(stages) - 3 * workers, stopped
    Watched(scene).ends_as(calm)
