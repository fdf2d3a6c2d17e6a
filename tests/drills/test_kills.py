"""SIGKILL at random moments of `run`: the resumed run ends with the bytes of an undisturbed run.

DRILL_KILLS is the number of kills (default: 100) for a run without workers, and for a run with two
workers. A fifth of this number is the number of runs with killed workers. DRILL_SEED changes the
moments.
"""

import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from common.jobs.run_jobs import MAX_TRIES
from tests.drills.processes import (
    START,
    Scene,
    Watched,
    check_same_store,
    finish,
    kind_of,
    workers_of,
)

KILLS = int(os.environ.get("DRILL_KILLS", "100"))
SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS_PER_RUN = 12
STARTS_S = 3.0

# The name of a stage, and its duration in seconds.
Stage = tuple[str, float]


def stages_of_a_run(scene: Scene) -> list[Stage]:
    watched = finish(scene)
    began = [*watched.stages, (watched.ended_s, "")]
    timed = [(name, end_s - at_s) for (at_s, name), (end_s, _) in pairwise(began)]
    return [(START, STARTS_S), *timed]


def kill_in(scene: Scene, stages: list[Stage], target: int, rng: np.random.Generator) -> str | None:
    """Kill a run in a stage, or in the next one left to do; return its kind, None if it ended."""
    delay_s = rng.uniform(0, stages[target][1])
    watched = Watched(scene)
    if target > 0:
        watched.wait_for_stage({name for name, _ in stages[target:]})
    time.sleep(delay_s)
    if watched.process.poll() is None:
        watched.send(signal.SIGKILL)
    code = watched.end()
    assert code in (0, -signal.SIGKILL), watched.lines
    return kind_of(watched.stage) if code else None


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_any_moment_a_run_ends_with_the_same_bytes(
    workers: int, calm: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, struck = np.random.default_rng(SEED), Counter[str]()
    stages = stages_of_a_run(calm.elsewhere(tmp_path / "first", workers=workers))
    kinds = Counter(kind_of(name) for name, _ in stages)
    for number in range(KILLS):
        scene = calm.elsewhere(tmp_path / str(number), workers=workers)
        # Kinds of stages that were seldom struck go first; within a run its stages go in turn.
        weights = [1 / kinds[kind_of(n)] / (1 + struck[kind_of(n)]) for n, _ in stages]
        share = np.array(weights) / sum(weights)
        for target in sorted(rng.choice(len(stages), KILLS_PER_RUN, p=share).tolist()):
            kind = kill_in(scene, stages, target, rng) if struck.total() < KILLS else None
            if kind is None:
                break
            struck[kind] += 1
        Watched(scene).ends_as(calm)
        check_same_store(scene.store, calm.store)
        if struck.total() >= KILLS:
            break
    assert struck.total() >= KILLS, f"too many runs ended before their kill: {struck}"
    with capsys.disabled():
        sys.stdout.write(f"\n{KILLS} kills: {dict(struck)}\n")
    # With two workers, one worker may hide the stages of the other worker.
    if 4 * len(kinds) <= KILLS and workers == 1:
        assert set(struck) == set(kinds)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_workers_killed_at_any_moment_cost_their_job_alone(
    calm: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, n_struck, n_runs = np.random.default_rng(SEED), 0, max(1, KILLS // 5)
    for number in range(n_runs):
        scene = calm.elsewhere(tmp_path / str(number), workers=2)
        watched = Watched(scene)
        while watched.process.poll() is None:
            time.sleep(rng.uniform(0.3, 0.9))  # the jobs of these runs take about a second
            watched.look()
            n_lost = sum("killed by SIGKILL" in line for line in watched.lines)
            workers = workers_of(watched.process.pid)
            if workers and n_lost < MAX_TRIES - 1:
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(workers)), signal.SIGKILL)
        watched.ends_as(calm)
        n_struck += sum("killed by SIGKILL" in line for line in watched.lines)
        check_same_store(scene.store, calm.store)
    with capsys.disabled():
        sys.stdout.write(f"\n{n_runs} runs, whose workers were killed {n_struck} times\n")
    assert n_struck >= n_runs
