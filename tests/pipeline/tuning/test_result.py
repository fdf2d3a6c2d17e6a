"""Finalists: who they are, with which seeds they train, when the baseline stays; and reports."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from common.metrics import family_interval
from common.progress import time_limit
from models.config.recipe import load_recipe
from models.run_folder import is_done, read_config
from pipeline.tuning.result import (
    TrialRecord,
    TuneResult,
    candidates,
    final_selection,
)
from tests.pipeline.tuning.small_study import PARAMETERS, outcome, search, small_recipe, space_over

ONE = space_over(PARAMETERS, finalists=1, seeds=2)


def record(number: int, value: float | None, *, baseline: bool = False) -> TrialRecord:
    state = "fail" if value is None else "complete"
    return TrialRecord(number, state, value, {}, baseline, None, None)


def test_the_baseline_is_always_among_the_candidates() -> None:
    own = [record(0, 0.1, baseline=True), record(1, 0.5), record(2, None), record(3, 0.7)]
    assert [r.number for r in candidates(own, 1)] == [3, 0]
    assert [r.number for r in candidates(own, 9)] == [3, 1, 0]
    assert [r.number for r in candidates([record(0, None, baseline=True), own[1]], 3)] == [1]


def test_the_baseline_stays_unless_it_is_beaten_by_more_than_noise() -> None:
    rng = np.random.default_rng(0)
    base, families = rng.uniform(0, 1, 12), [f"family{i // 2}" for i in range(12)]
    for shift in (0.3, 0.02, -0.1):
        other = base + shift + rng.normal(0, 0.1, 12)
        values = {4: [float(other.mean())], 0: [float(base.mean())]}
        chosen, reason = final_selection({4: other, 0: base}, values, 0, families)
        low, high = family_interval(other - base, families)
        wins = low > 0 and other.mean() > base.mean()
        assert chosen == (4 if wins else 0)
        told = reason.endswith(f"interval {low:+.4f} to {high:+.4f}")
        assert told == (other.mean() > base.mean())
        if shift == 0.3:
            assert wins and reason.startswith("trial 4 beats the baseline: +0.")
        if shift == 0.02:
            assert "not better by more than noise" in reason
    lead = rng.normal(0, 0.1, 12)
    low = family_interval(lead, families)[0]
    best = base + lead - low + 0.001  # surely better, if it were the only one
    of_ten = {0: base, 4: best} | {n: base - n for n in range(5, 14)}
    for finalists, wins in (({0: base, 4: best}, True), (of_ten, False)):
        means = {n: [float(own.mean())] for n, own in finalists.items()}
        chosen, reason = final_selection(finalists, means, 0, families)
        assert (chosen == 4) == wins and reason.endswith("as the best of 10") != wins
    chosen, reason = final_selection({4: other}, {4: [0.1]}, None, families)
    assert chosen == 4 and reason.endswith("the baseline could not be judged")


def test_finalists_train_with_other_seeds_and_decide(
    tiny_tree: Path,
    searched: tuple[Path, TuneResult],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    with time_limit(0):
        waiting = search(tiny_tree, tmp_path, trials=3, space=ONE)
    assert waiting.selection is None and not is_done(tmp_path / "out")
    caplog.set_level("INFO")
    result = search(tiny_tree, tmp_path, trials=3, space=ONE)
    assert outcome(result) == outcome(searched[1])
    selection = result.selection
    assert selection is not None and selection.reason in caplog.messages
    told = f"{len(selection.values)} finalists, 2 other seeds and "
    assert any(message.startswith(told) for message in caplog.messages)
    ranked = sorted(result.trials, key=lambda trial: -(trial.value or -2))
    expected = {trial.number for trial in ranked[:1]} | {0}
    assert selection.values.keys() == expected
    folders = sorted((tmp_path / "out" / "finalists").iterdir())
    assert len(folders) == 2 * len(expected)
    assert {tuple(read_config(f)["recipe"]["seeds"]) for f in folders} == {(1,), (2,)}
    chosen = result.trials[selection.trial]
    values = {} if chosen.is_baseline else chosen.params
    assert load_recipe(str(result.best_recipe)) == small_recipe(**values)
    assert is_done(tmp_path / "out")
    assert search(tiny_tree, tmp_path, trials=3, space=ONE).selection == selection
