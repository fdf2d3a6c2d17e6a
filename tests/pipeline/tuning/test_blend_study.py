"""A study of a blend: its value by hand, what it trains anew, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UsageError
from common.metrics import kendall_tau
from data.read import read_graph
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named, find_graphs
from models.config.recipe import Recipe
from models.train import load_model, train_model
from models.training.folds import grouped_folds
from models.training.jobs import TrainJob
from pipeline.tuning.cross_validate import cross_validate
from pipeline.tuning.result import TuneResult
from pipeline.tuning.space import with_values
from tests.models.small_study import outcome, recipe_table, search, space_over

PLACE = collection_named("layout:xla:random")
WEIGHT = "blend.weights.layout_boosting"
MODELS = ("layout_linear", "layout_boosting")
BLENDS = {"blend.method": {"choices": ["minmax-mean", "rank-mean"]}, WEIGHT: {"low": 0, "high": 8}}


def table_of(**values: Any) -> dict[str, Any]:
    table = recipe_table(**{"layout_boosting.rounds": 3, "layout_boosting.min_rows_per_leaf": 2})
    return with_values(table, values) | {"layout": {"models": list(MODELS)}}


def space_of(parameters: dict[str, Any] = BLENDS, **study: Any) -> Any:
    return space_over(parameters, model="blend", **study)


def folds_of(tree: Path) -> tuple[tuple[GraphFile, ...], ...]:
    return grouped_folds(find_graphs(tree, collections=(PLACE,), splits=("train",)), 2, seed=0)


def trainings(out: Path) -> list[str]:
    """Name the models that the trials of a study have trained, once per training."""
    return sorted(path.parent.name for path in out.glob("**/fold-*/*/DONE"))


@pytest.fixture(scope="module")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of four trials that differ in how they blend; read it only."""
    folder = tmp_path_factory.mktemp("blends")
    return folder, search(tiny_tree, folder, trials=4, space=space_of(), table=table_of())


def blended_by_hand(tree: Path, folder: Path, *, method: str, weight: float) -> float:
    """Train the models one by one on the folds, and blend their scores graph by graph."""

    def scaled(scores: Any) -> Any:
        if method == "minmax-mean":
            span = scores.max() - scores.min()
            return (scores - scores.min()) / span if span else np.zeros(len(scores))
        ranks = [(scores < s).sum() + ((scores == s).sum() - 1) / 2 for s in scores]
        return np.array(ranks) / max(len(scores) - 1, 1)

    recipe, means, folds = Recipe.model_validate(table_of()), [], folds_of(tree)
    for number, held_out in enumerate(folds):
        learned = [file for fold in folds if fold is not held_out for file in fold]
        rankers = {}
        for model in MODELS:
            run_dir = folder / f"{model}-{number}"
            train_model(TrainJob(model, recipe, learned, 0, run_dir), PLACE, resume=True)
            rankers[model] = load_model(run_dir)
        values = []
        for file in held_out:
            graph = read_graph(file)
            linear, boosting = (
                scaled(rankers[model].score(graph).astype(np.float64)) for model in MODELS
            )
            scores = ((linear + weight * boosting) / (1 + weight)).astype(np.float32)
            order = np.argsort(scores, kind="stable")
            values.append(kendall_tau(np.argsort(order), graph.runtime_ns))
        means.append(np.mean(values))
    return float(np.mean(means))


def test_a_trials_value_is_that_of_models_trained_one_by_one_and_blended(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    _, result = searched
    assert [trial.state for trial in result.trials] == ["complete"] * 4
    assert result.trials[0].params == {"blend.method": "minmax-mean", WEIGHT: 1}
    assert len({trial.params["blend.method"] for trial in result.trials}) == 2
    for trial in result.trials:
        method, weight = str(trial.params["blend.method"]), float(trial.params[WEIGHT])
        expected = blended_by_hand(tiny_tree, tmp_path, method=method, weight=weight)
        assert trial.value == pytest.approx(expected, abs=1e-9)


def test_a_weight_changes_the_value(tiny_tree: Path, tmp_path: Path) -> None:
    values = {}
    for weight in (0.0, 1.0, 100.0):
        recipe = Recipe.model_validate(table_of(**{WEIGHT: weight}))
        folder, kept = tmp_path / str(weight), tmp_path / "kept"
        result = cross_validate(recipe, "blend", folds_of(tiny_tree), folder, kept_scores=kept)
        values[weight] = result.value
    alone = cross_validate(recipe, "layout_linear", folds_of(tiny_tree), tmp_path / "linear")
    assert values[0.0] == alone.value
    assert len(set(values.values())) == 3


def test_without_kept_scores_a_blend_is_worth_the_same(tiny_tree: Path, tmp_path: Path) -> None:
    recipe, folds = Recipe.model_validate(table_of()), folds_of(tiny_tree)
    kept = cross_validate(recipe, "blend", folds, tmp_path / "a", kept_scores=tmp_path / "kept")
    anew = cross_validate(recipe, "blend", folds, tmp_path / "b")
    assert kept.per_graph == anew.per_graph and kept.folds == anew.folds
    assert len(trainings(tmp_path / "a")) == len(trainings(tmp_path / "b")) == 4


def test_trials_that_differ_in_the_blend_alone_train_once(
    searched: tuple[Path, TuneResult],
) -> None:
    folder, _ = searched
    assert trainings(folder / "out") == sorted(2 * [f"{model}-seed0" for model in MODELS])
    assert not list((folder / "out").rglob("*.tmp"))


def test_a_model_is_trained_anew_where_its_own_keys_change(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_of({"layout_boosting.rounds": {"low": 1, "high": 60}})
    result = search(tiny_tree, tmp_path, trials=3, space=space, table=table_of())
    rounds = {trial.params["layout_boosting.rounds"] for trial in result.trials}
    done = trainings(tmp_path / "out")
    assert len(rounds) == 3
    assert (done.count("layout_linear-seed0"), done.count("layout_boosting-seed0")) == (2, 6)


def test_features_are_part_of_what_a_model_is(tiny_tree: Path, tmp_path: Path) -> None:
    for padding in ("zero", "minus-one"):
        recipe = Recipe.model_validate(table_of(**{"features.padding": padding}))
        folder, kept = tmp_path / padding, tmp_path / "kept"
        cross_validate(recipe, "blend", folds_of(tiny_tree), folder, kept_scores=kept)
        assert len(trainings(folder)) == 4


def test_a_study_goes_on_as_if_never_stopped(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    for trials in (2, 4):
        result = search(tiny_tree, tmp_path, trials=trials, space=space_of(), table=table_of())
    assert outcome(result) == outcome(searched[1])
    assert len(trainings(tmp_path / "out")) == 4


def test_finalists_share_what_they_train(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_of(finalists=2, seeds=1, pruner="wilcoxon")
    result = search(tiny_tree, tmp_path, trials=4, space=space, table=table_of())
    assert result.verdict is not None and len(result.verdict.finals) >= 2
    assert len(trainings(tmp_path / "out" / "finalists")) == 4
    assert json.loads((tmp_path / "out" / "finalists.json").read_text())


def test_timed_trials_train_all_themselves(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_of(objectives="score-and-training-time")
    result = search(tiny_tree, tmp_path, trials=2, space=space, table=table_of())
    assert len(trainings(tmp_path / "out")) == 8
    assert all(trial.cost for trial in result.trials)


def test_a_blended_network_begins_from_its_shared_model(tiny_tree: Path, tmp_path: Path) -> None:
    network = "cross_config_sage"
    table = table_of(**{"blend.weights.layout_linear": 0.0})
    training = {"steps": 2, "warmup_steps": 1, "shared_steps": 1}
    table = with_values(table, {f"{network}.training.{key}": n for key, n in training.items()})
    recipe = Recipe.model_validate(table | {"layout": {"models": ["layout_linear", network]}})
    folds = folds_of(tiny_tree)
    files = find_graphs(tiny_tree, collections=LAYOUT_COLLECTIONS, splits=("train",))
    alone = cross_validate(recipe, network, folds, tmp_path / "alone", shared=files)
    both = cross_validate(
        recipe, "blend", folds, tmp_path / "both", shared=files, kept_scores=tmp_path / "kept"
    )
    assert both.per_graph == alone.per_graph


@pytest.mark.parametrize("key", ["cross_config_sage.hidden", "blend.weights.cross_config_sage"])
def test_a_model_that_the_recipe_does_not_blend_is_refused(
    key: str, tiny_tree: Path, tmp_path: Path
) -> None:
    space = space_of({key: {"choices": [1, 2]}})
    with pytest.raises(UsageError) as refused:
        search(tiny_tree, tmp_path, trials=1, space=space, table=table_of())
    told = f"search space: '{key}' has no effect; the recipe's layout.models are layout_linear, "
    assert str(refused.value) == f"{told}layout_boosting"
    assert not (tmp_path / "out").exists()
