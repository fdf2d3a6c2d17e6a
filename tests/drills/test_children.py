"""Processes that a training starts, killed: the run ends with one line; none outlives a killed run.

Packing on several processes is drilled in tests/data/graph_store/test_prepare_processes.py.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.drills.outcome import check_same
from tests.drills.processes import (
    POLL_S,
    Scene,
    Watched,
    descendants,
    finish,
    refused,
    wait_until_gone,
)

TWO = ("--set", "late_fusion_sage.training.processes=2")
STEPS = ("--set", "late_fusion_sage.training.steps=60")


def written(scene: Scene) -> set[int]:
    """Return when the checkpoints of the training were written."""
    folder = scene.out / "models/tile-xla/late_fusion_sage-seed0"
    return {path.stat().st_mtime_ns for path in folder.glob("checkpoint.safetensors")}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_while_two_processes_train(calm: Scene, tmp_path: Path) -> None:
    whole, scene = (calm.elsewhere(tmp_path / name) for name in ("whole", "killed"))
    finish(whole, *TWO, *STEPS)
    for victim in ("a child", "the parent"):
        watched = Watched(scene, scene.run(*TWO, *STEPS))
        before = written(scene)
        while written(scene) == before:  # until its processes train
            assert watched.process.poll() is None, watched.lines
            time.sleep(POLL_S)
        children = descendants(watched.process.pid)
        if victim == "a child":
            os.kill(children[-1], signal.SIGKILL)
            assert "one of its processes was ended from outside" in refused(watched)
        else:
            watched.send(signal.SIGKILL)
            assert watched.end() == -signal.SIGKILL
        wait_until_gone(children)
    finish(scene, *TWO, *STEPS)
    check_same(scene.out, whole.out)
