"""SIGKILL at random moments of `run`, again and again: it ends with the bytes of a calm run.

DRILL_KILLS says how many kills `make test-slow` makes (100), DRILL_SEED draws other moments. One
kill in ten strikes a process that was started as a user does, imports and all; the others strike
processes that were forked after the imports.
"""

import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.drills.outcome import check_same, check_same_store
from tests.drills.processes import START, Scene, Watched, finish, kind_of

KILLS = int(os.environ.get("DRILL_KILLS", "100"))
SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS_PER_RUN = 12
COLD_SHARE = 0.1
STARTS_S = 3.0


@dataclass(frozen=True)
class Stage:
    """A stage of a calm run: its line, and how long it lasts."""

    name: str
    lasts_s: float

    @property
    def kind(self) -> str:
        """Return the stage without what it is about."""
        return kind_of(self.name)


def stages_of_a_run(scene: Scene) -> list[Stage]:
    """Time the stages of an undisturbed run; what comes before the first one is one of them."""
    watched = finish(scene, warm=True)
    began = [*watched.stages, (watched.ended_s, "")]
    timed = [Stage(name, end_s - at_s) for (at_s, name), (end_s, _) in pairwise(began)]
    return [Stage(START, STARTS_S), *timed]


class Drill:
    """Kills of one stage after the other."""

    def __init__(self, calm: Scene, folder: Path, *, n_kills: int, seed: int) -> None:
        self.calm, self.folder, self.n_kills = calm, folder, n_kills
        self.rng = np.random.default_rng(seed)
        self.struck: Counter[str] = Counter()
        first = calm.elsewhere(folder / "first")
        self.stages = stages_of_a_run(first)
        self.compare(first)

    @property
    def is_over(self) -> bool:
        """Tell whether all kills were made."""
        return self.struck.total() >= self.n_kills

    def go(self) -> None:
        """Kill runs, each several times, and let each end, until there were enough kills."""
        for number in count():
            scene = self.calm.elsewhere(self.folder / str(number))
            for target in self.moments():
                if self.is_over or not self.kill_in(scene, target):
                    break
            finish(scene, warm=number > 0)
            self.compare(scene)
            if self.is_over:
                return
            assert number < self.n_kills, f"too many runs ended before their kill: {self.struck}"

    def compare(self, scene: Scene) -> None:
        """Demand that a run and its store are what the calm one's are."""
        check_same(scene.out, self.calm.out)
        check_same_store(scene.store, self.calm.store)

    def moments(self) -> list[int]:
        """Draw in which stages of one run to strike; those of kinds seldom struck go first."""
        n_of_kind = Counter(stage.kind for stage in self.stages)
        share = np.array(
            [1 / n_of_kind[stage.kind] / (1 + self.struck[stage.kind]) for stage in self.stages]
        )
        share /= share.sum()
        return sorted(self.rng.choice(len(self.stages), KILLS_PER_RUN, p=share).tolist())

    def kill_in(self, scene: Scene, target: int) -> bool:
        """Go on with a run and kill it in a stage, or in the next one that is left to do.

        Returns:
            False if it ended before.
        """
        cold = target == 0 or self.rng.random() < COLD_SHARE
        delay_s = self.rng.uniform(0, self.stages[target].lasts_s)
        watched = Watched(scene, scene.run(), warm=not cold)
        if target > 0:
            watched.wait_for_stage({stage.name for stage in self.stages[target:]})
        time.sleep(delay_s)
        if watched.process.poll() is None:
            watched.send(signal.SIGKILL)
        code = watched.end()
        if code == -signal.SIGKILL:
            self.struck[kind_of(watched.stage)] += 1
            return True
        assert code == 0, watched.lines
        return False


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_killed_at_any_moment_a_run_ends_with_the_same_bytes(
    calm: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    drill = Drill(calm, tmp_path, n_kills=KILLS, seed=SEED)
    drill.go()
    took_s = time.monotonic() - started
    with capsys.disabled():
        sys.stdout.write(f"\n{KILLS} kills in {took_s:.0f} s: {dict(drill.struck)}\n")
    kinds = {stage.kind for stage in drill.stages}
    if 4 * len(kinds) <= KILLS:
        assert set(drill.struck) == kinds
