"""Pruning: what is reported, who is given up and who never is, and how that is recorded."""

from pathlib import Path

import numpy as np
import optuna
import pytest
from scipy.stats import wilcoxon

from models.run_folder import is_done
from pipeline.tuning.pruning import P_THRESHOLD, FoldValues, give_up_or_go_on, pruner_of
from pipeline.tuning.storage.claims import REASON
from pipeline.tuning.study_config import StudyConfig
from tests.models.small_study import PARAMETERS, outcome, search, space_over


def config(pruner: str, folds: int) -> StudyConfig:
    table = {"collection": "layout:xla:random", "model": "layout_boosting", "pruner": pruner}
    return StudyConfig.from_table({**table, "folds": folds}, source="test")


def folds_of(values: list[float], n: int) -> list[FoldValues]:
    """Part graphs 0, 1, … into n folds of equal size."""
    parts = np.split(np.array(values), n)
    return [{f"{i}-{j}": float(v) for j, v in enumerate(p)} for i, p in enumerate(parts)]


def run(study: optuna.Study, own: StudyConfig, folds: list[FoldValues], *, never: bool) -> int:
    """Tell a trial its folds until it is pruned; return how many it was told."""
    trial = study.ask()
    after_fold = give_up_or_go_on(trial, own, never=never)
    for number, fold in enumerate(folds, start=1):
        try:
            after_fold(fold)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return number
    study.tell(trial, float(np.mean([np.mean(list(fold.values())) for fold in folds])))
    return len(folds)


def study_with(own: StudyConfig) -> optuna.Study:
    return optuna.create_study(direction="maximize", pruner=pruner_of(own), study_name="s")


@pytest.mark.parametrize("pruner", ["none", "hyperband"])
def test_the_mean_so_far_is_reported_after_each_fold(pruner: str) -> None:
    own = config(pruner, 3)
    study = study_with(own)
    assert run(study, own, [{"a": 0.5, "b": 0.1}, {"c": 0.9}, {"d": -0.3}], never=True) == 3
    reported = study.trials[0].intermediate_values
    assert reported == pytest.approx({1: 0.3, 2: 0.6, 3: 0.3})


def test_wilcoxon_gives_up_what_is_surely_worse_than_the_best_graph_by_graph() -> None:
    own = config("wilcoxon", 2)
    rng = np.random.default_rng(0)
    best = rng.uniform(0.5, 0.9, 12)
    pruned = []
    for shift in (-0.3, -0.02, 0.0, 0.1):
        study = study_with(own)
        run(study, own, folds_of(list(best), 2), never=True)
        values = best + shift + rng.normal(0, 0.05, 12)
        told = run(study, own, folds_of(list(values), 2), never=False)
        difference = (values - best)[:6]
        sure = wilcoxon(difference, alternative="less", zero_method="zsplit").pvalue < P_THRESHOLD
        assert told == (1 if sure else 2)
        pruned.append(bool(sure))
        steps = study.trials[1].intermediate_values
        assert steps == pytest.approx(dict(enumerate(values[: 6 * told])))
    assert pruned[0] and not pruned[-1]


def test_hyperband_gives_up_the_worse_half_and_no_baseline() -> None:
    own = config("hyperband", 4)
    rising, falling = study_with(own), study_with(own)
    for n in range(12):
        better, worse = [{"a": 0.1 + n / 20}] * 4, [{"a": 0.9 - n / 20}] * 4
        assert run(rising, own, better, never=False) == 4
        run(falling, own, worse, never=False)
    told = [len(trial.intermediate_values) for trial in falling.trials]
    assert told[0] == 4 and 1 in told and 3 not in told, told  # compared after folds 1 and 2
    assert run(falling, own, [{"a": -1.0}] * 4, never=True) == 4
    reasons = [t.user_attrs[REASON] for t in falling.trials if t.state.name == "PRUNED"]
    assert reasons[0].startswith("pruned after 1 of 4 folds, mean so far 0.")


def test_a_pruned_trial_is_recorded_and_counts(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_over(PARAMETERS, pruner="hyperband")
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=8, space=space, say=said.append)
    assert len(result.trials) == 8 and result.trials[0].state == "complete"
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned, [trial.state for trial in result.trials]
    for trial in pruned:
        folder = tmp_path / "out" / "trials" / str(trial.number)
        assert is_done(folder / "fold-0") and not (folder / "fold-1").exists()
        assert trial.value is None and "1 of 2 folds" in (trial.reason or "")
        assert f"trial {trial.number} {trial.reason}" in said
    assert result.best.state == "complete"
    assert outcome(search(tiny_tree, tmp_path, trials=8, space=space)) == outcome(result)
    assert search(tiny_tree, tmp_path / "none", trials=1).study != result.study
