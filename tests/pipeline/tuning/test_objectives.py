"""Two objectives: the front of what nothing beats, and a search for both."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from pipeline.tuning.objectives import OBJECTIVES, pareto_front
from pipeline.tuning.result import TrialRecord
from tests.models.small_study import PARAMETERS, search, space_over


def test_the_front_is_what_no_other_trial_beats() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = rng.integers(0, 6, (12, 2)).astype(float)  # with ties
        trials = [
            TrialRecord(n, "complete", value, {}, False, None, cost=cost)
            for n, (value, cost) in enumerate(points.tolist())
        ]
        unbeaten = {
            (value, cost)
            for value, cost in points.tolist()
            if not any(
                v >= value and c <= cost and (v, c) != (value, cost) for v, c in points.tolist()
            )
        }
        front = pareto_front(trials)
        assert {(t.value, t.cost) for t in front} == unbeaten
        assert len(front) == len(unbeaten)
        assert [t.cost for t in front] == sorted(t.cost or 0.0 for t in front)


@pytest.mark.parametrize("objectives", sorted(set(OBJECTIVES) - {"score"}))
def test_a_search_for_score_and_time_keeps_the_best_by_score(
    objectives: str, tiny_tree: Path, tmp_path: Path
) -> None:
    space = space_over(PARAMETERS, objectives=objectives)
    result = search(tiny_tree, tmp_path, trials=3, space=space)
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert all(trial.cost is not None and 0 < trial.cost < 60 for trial in result.trials)
    assert result.best_value == max(trial.value or -2 for trial in result.trials)


def test_trials_with_two_objectives_are_not_pruned() -> None:
    with pytest.raises(UsageError, match="trials with two objectives are not pruned"):
        space_over(PARAMETERS, objectives="score-and-training-time", pruner="hyperband")
