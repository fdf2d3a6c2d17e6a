"""SIGKILL, Ctrl-C and SIGTERM in every stage of `run`: the resumed run has the same bytes.

DRILL_KILLS (default: 100) and DRILL_SIGNALS (default: 20) are the numbers of strikes for a run
without workers, and for a run with two workers. DRILL_SEED changes the moments.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from common.jobs.run_jobs import MAX_TRIES
from tests.drills.processes import (
    START,
    Scene,
    Watched,
    check_same_store,
    descendants,
    finish,
    kind_of,
    lives,
    wait_for_handlers,
    wait_until_gone,
    workers_of,
)
from tests.drills.test_signals import ENDS, RESUMES

KILLS = int(os.environ.get("DRILL_KILLS", "100"))
SIGNALS = int(os.environ.get("DRILL_SIGNALS", "20"))
SEED = int(os.environ.get("DRILL_SEED", "0"))
STARTS_S = 3.0
STOPS_S = 30.0
GONE_S = 2.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * max(KILLS, SIGNALS))]


def stages_of_a_run(scene: Scene) -> dict[str, tuple[str, float]]:
    """Return the first stage of each kind, with its duration in seconds."""
    watched = finish(scene)
    stages = {START: (START, STARTS_S)}
    for (start_s, stage), (end_s, _) in pairwise([*watched.stages, (watched.ended_s, "")]):
        stages.setdefault(kind_of(stage), (stage, end_s - start_s))
    return stages


def strike(scene: Scene, stages: set[str], delay_s: float, number: signal.Signals) -> str | None:
    """Stop a run some time after one of some stages has begun.

    Returns:
        The kind of the stage that was stopped, or None if the run ended before.
    """
    watched = Watched(scene)
    wait_for_handlers(watched.process.pid)
    if START not in stages:
        watched.wait_for_stage(stages)
    time.sleep(delay_s)
    below = descendants(watched.process.pid)
    if watched.process.poll() is None:
        watched.send(number)
    sent_s = time.monotonic()
    if watched.end() == 0:
        return None
    if number == signal.SIGKILL:
        assert watched.process.returncode == -number, watched.lines
        wait_until_gone(below)
        return kind_of(watched.stage)
    assert time.monotonic() - sent_s < STOPS_S
    time.sleep(GONE_S)
    assert not any(map(lives, below)), "a process outlives its parent"
    code, line = ENDS[number]
    assert watched.is_refused(code) in (line, line + RESUMES)
    assert watched.lines[-1].startswith(line)
    assert not list(scene.out.rglob(".*.tmp"))
    return kind_of(watched.stage)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("numbers", "n_strikes"),
    [((signal.SIGKILL,), KILLS), (tuple(ENDS), SIGNALS)],
    ids=["kills", "signals"],
)
def test_a_run_that_is_struck_in_any_stage_ends_with_the_same_bytes(
    numbers: tuple[signal.Signals, ...], n_strikes: int, workers: int, calm: Scene, tmp_path: Path
) -> None:
    rng, struck = random.Random(SEED + workers), Counter[str]()
    stages = stages_of_a_run(calm.elsewhere(tmp_path / "first", workers=workers))
    names = [name for name, _ in stages.values()]
    for folder in range(n_strikes):
        scene = calm.elsewhere(tmp_path / str(folder), workers=workers)
        for place, (_, duration_s) in enumerate(stages.values()):
            # A stage that an earlier try has finished is replaced by a later one.
            later, delay_s = set(names[place:]), rng.uniform(0, duration_s)
            kind = strike(scene, later, delay_s, rng.choice(numbers))
            struck.update([kind] if kind else [])
            if kind is None or struck.total() == n_strikes:
                break
        Watched(scene).ends_as(calm)
        check_same_store(scene.store, calm.store)
        if struck.total() == n_strikes:
            break
    assert struck.total() == n_strikes, f"too many runs ended before they were struck: {struck}"
    # With two workers, one worker may hide the stages of the other worker.
    if workers == 1 and n_strikes >= 4 * len(stages):
        assert struck.keys() == stages.keys()


def test_workers_killed_at_any_moment_cost_their_job_alone(calm: Scene, tmp_path: Path) -> None:
    rng, n_struck, n_runs = random.Random(SEED), 0, max(1, KILLS // 5)
    for number in range(n_runs):
        scene = calm.elsewhere(tmp_path / str(number), workers=2)
        watched = Watched(scene)
        while not watched.has_ended():
            time.sleep(rng.uniform(0.3, 0.9))  # the jobs of these runs take about a second
            n_lost = sum("killed by SIGKILL" in line for line in watched.lines)
            workers = workers_of(watched.process.pid)
            if workers and n_lost < MAX_TRIES - 1:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
        watched.ends_as(calm)
        n_struck += sum("killed by SIGKILL" in line for line in watched.lines)
        check_same_store(scene.store, calm.store)
    assert n_struck >= n_runs
