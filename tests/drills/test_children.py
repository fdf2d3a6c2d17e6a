"""Processes that a run starts, killed: the run ends with one line; and none outlives a killed run.

Packing on several processes is drilled in tests/data/graph_store/test_prepare_processes.py.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.drills.outcome import check_same
from tests.drills.processes import Scene, Watched, descendants, finish, refused, wait_until_gone

TWO = ("--set", "late_fusion_sage.training.processes=2")
STEPS = ("--set", "late_fusion_sage.training.steps=60")
KILLS = 3


@pytest.fixture(scope="module")
def by_two(calm: Scene, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A finished run that trained on two processes."""
    scene = calm.elsewhere(tmp_path_factory.mktemp("two"))
    finish(scene, *TWO, *STEPS)
    return scene


def wait_for_children(watched: Watched, n_children: int, sign: Path | None) -> list[int]:
    """Wait until a training has started its processes, and until a file is there."""
    while True:
        children = descendants(watched.process.pid)
        if len(children) >= n_children and (sign is None or list(sign.rglob("checkpoint.*"))):
            return children
        assert watched.process.poll() is None, watched.lines
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["a child", "the parent"])
def test_kills_while_two_processes_train(victim: str, by_two: Scene, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(victim))
    scene = by_two.elsewhere(tmp_path)
    killed = 0
    for number in range(KILLS):
        watched = Watched(scene, scene.run(*TWO, *STEPS))
        # The resource tracker, then two that train; the first moments are while they import.
        sign = scene.out if number == 1 else None
        children = wait_for_children(watched, 3 if sign else 2, sign)
        delay_s = rng.uniform(0, 0.3 if sign else 4)
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline and len(descendants(watched.process.pid)) > 1:
            time.sleep(0.005)
        children = [*{*children, *descendants(watched.process.pid)}]
        if victim == "the parent":
            if watched.process.poll() is None:
                watched.send(signal.SIGKILL)
            killed += watched.end() == -signal.SIGKILL
        else:
            training = descendants(watched.process.pid)[1:]
            if training:
                os.kill(training[-1], signal.SIGKILL)
            if watched.end() != 0:
                line = refused(watched)
                assert "one of its processes was ended from outside" in line, line
                killed += 1
        wait_until_gone(children)
    assert killed > 0
    finish(scene, *TWO, *STEPS)
    check_same(scene.out, by_two.out)
