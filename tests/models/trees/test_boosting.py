"""Boosting: rows that are streamed, rounds that folds choose, importances."""

import itertools
from pathlib import Path

import lightgbm
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from common.errors import PipelineError
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import distinct_configs
from data.tree import GraphFile, collection_named
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import BoostingConfig
from models.registry import TrainJob
from models.trees import boosting as module
from models.trees import rows as boosting_rows
from models.trees.boosting import (
    IMPORTANCES,
    MODEL_FILE,
    booster_parameters,
    choose_capacity,
    held_out_curve,
    load_boosting,
    pairwise_logistic,
    ranked,
    read_importances,
    row_folds,
)
from models.trees.linear import LINEAR, LINEAR_SCALE, LinearRows
from models.trees.rows import GraphRows, relevance, sample_rows, statistics_table

OBJECTIVES = ("lambdarank", "pairwise_logistic")


def train(files: list[GraphFile], config: BoostingConfig, folder: Path) -> str:
    recipe = Recipe(threads=1, layout_boosting=config)
    module.train_boosting(TrainJob("layout_boosting", recipe, files, 0, folder))
    return (folder / MODEL_FILE).read_text()


def test_streamed_blocks_of_rows_are_those_of_one_table(
    layout_files: list[GraphFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosting_rows, "BLOCK_ROWS", 7)
    config = BoostingConfig(min_rows_per_leaf=2)
    graphs = sample_rows(layout_files, config, 0)
    names = statistics_names("layout", "all")
    streamed = boosting_rows.binned(graphs, config, statistics_table("all"), names)
    table = np.concatenate([statistics_of(read_graph(g.file), "all")(g.rows) for g in graphs])
    one = lightgbm.Dataset(
        table,
        np.concatenate([relevance(graph.runtime, 32) for graph in graphs]),
        group=[len(graph.rows) for graph in graphs],
        feature_name=list(names),
        params=boosting_rows.dataset_parameters(config, len(table)),
    )
    parameters = booster_parameters(config, len(table), seed=0, threads=1)
    first, second = (
        lightgbm.train(parameters, dataset, 5).predict(table) for dataset in (streamed, one)
    )
    assert first.std() > 0
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_few_rows_are_enough_and_other_statistics_are_refused(
    objective, layout_files: list[GraphFile], tmp_path: Path
) -> None:
    config = BoostingConfig(objective=objective, configs_per_graph=6, num_boost_round=3)
    assert "split_gain" in train(layout_files[:1], config, tmp_path)
    other = Recipe(layout_boosting=BoostingConfig(statistics="all"))
    with pytest.raises(PipelineError, match="of other statistics; remove its folder, and those"):
        load_boosting("layout_boosting", tmp_path, other)
    (tmp_path / MODEL_FILE).write_text("tree")
    with pytest.raises(PipelineError, match=r"booster\.txt: not a LightGBM model"):
        load_boosting("layout_boosting", tmp_path, other)


def test_importances_are_averaged_over_models(tmp_path: Path) -> None:
    for seed, (gain, splits) in enumerate((([3.0, 1.0], [1, 1]), ([0.0, 5.0], [0, 4]))):
        (tmp_path / str(seed)).mkdir()
        table = {"statistic": ["a", "b"], "gain": gain, "splits": splits}
        pl.DataFrame(table).write_parquet(tmp_path / str(seed) / IMPORTANCES)
    found = read_importances([tmp_path / "0", tmp_path / "1", tmp_path / "none"])
    assert found is not None
    assert found.rows() == [("b", 0.625, 0.75), ("a", 0.375, 0.25)]
    assert read_importances([tmp_path / "none"]) is None


def layout_rows(name: str, runtime: list[float]) -> GraphRows:
    file = GraphFile(collection_named("layout:xla:random"), "train", name, Path(name))
    values = np.asarray(runtime)
    return GraphRows(file, np.arange(len(values)), values)


def test_folds_keep_families_apart_and_part_the_configs_of_one() -> None:
    names = ["alpha_b1", "beta_b1", "alpha_b2", "gamma_b1", "beta_b4"]
    folds = row_folds([layout_rows(name, [1.0, 2.0, 3.0]) for name in names], 3, seed=0)
    folds = folds.reshape(5, 3)
    assert (folds == folds[:, :1]).all()
    assert folds[0, 0] == folds[2, 0] and folds[1, 0] == folds[4, 0]
    assert sorted(set(folds[:, 0].tolist())) == [0, 1, 2]
    graphs = [layout_rows(f"{name}_b1", [1.0, 2.0]) for name in "abcdefg"]
    assert len({tuple(row_folds(graphs, 3, seed).tolist()) for seed in range(6)}) > 1
    graphs = [layout_rows(name, [1.0, 2.0, 3.0, 4.0]) for name in ("alpha_b1", "alpha_b2")]
    assert row_folds(graphs, 2, seed=0).tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_held_out_rows_are_judged_graph_by_graph() -> None:
    graphs = [layout_rows("a_b1", [1.0, 2.0, 3.0, 4.0]), layout_rows("b_b1", [4.0, 2.0, 1.0])]
    held_out = np.asarray([0, 2, 3, 4, 5, 6])
    scores = np.asarray([3.0, 1.0, 2.0, 9.0, 8.0, 7.0])
    first = kendall_tau(-scores[:3], np.asarray([1.0, 3.0, 4.0]))
    second = kendall_tau(-scores[3:], graphs[1].runtime)
    assert ranked(graphs, held_out, scores) == pytest.approx((first + second) / 2)


def test_the_best_round_is_that_of_the_mean_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, fold 0 would be best at round 2 and stop at 5, before the best round of the mean."""
    graphs = [layout_rows(name, list(np.arange(1.0, 12))) for name in ("a_b1", "b_b1")]
    config = BoostingConfig(num_boost_round=50, early_stop=3, folds=2, min_rows_per_leaf=1)
    rows = np.random.default_rng(0).normal(size=(22, 3)).astype(np.float32)
    dataset = boosting_rows.binned(graphs, config, lambda _, taken: rows[taken], list("abc"))
    parameters = booster_parameters(config, 22, seed=0, threads=1)
    folds = row_folds(graphs, 2, seed=0)
    quality = {0: [0.2, 1.0, 0.4, 0.6, 0.7, 0.8, 0.8], 1: [0.2, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7]}
    taken = {0: 0, 1: 0}

    def judge(_: object, held_out: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        assert len(scores) == len(held_out) == 11
        (fold,) = set(folds[held_out].tolist())
        taken[fold] += 1
        return [*quality[fold], 0, 0, 0][taken[fold] - 1]

    monkeypatch.setattr(module, "ranked", judge)
    assert choose_capacity(graphs, dataset, parameters, config, seed=0) == (31, 7)
    assert taken == {0: 10, 1: 10}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0.5, 0.4], 3), ([0.5, 0.6, 0.6], 7), ([0.5, 0.6, 0.7], 15)],
)
def test_leaves_are_doubled_while_held_out_graphs_are_ranked_better(
    scores: list[float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [layout_rows(name, list(np.arange(1.0, 12))) for name in ("a_b1", "b_b1")]
    config = BoostingConfig(num_boost_round=5, early_stop=1, num_leaves=3, max_leaves=30)
    tried = []

    def cross_validate(parameters: dict[str, int], *_: object, **__: object) -> dict[str, object]:
        tried.append(parameters["num_leaves"])
        return {"valid ranked-mean": [0.1, scores[len(tried) - 1]]}

    monkeypatch.setattr(lightgbm, "cv", cross_validate)
    assert choose_capacity(graphs, None, {}, config, seed=0) == (expected, 2)
    assert tried == [3, 7, 15][: len(scores)]


def test_folds_begin_from_rankers_that_have_not_learned_their_graphs(
    layout_files: list[GraphFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BoostingConfig(num_boost_round=2, early_stop=1, folds=2, learning_rate=1e-9)
    graphs = sample_rows(layout_files, config, 0)
    seen = {}

    def judge(_: object, held_out: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        return seen.setdefault(tuple(held_out), scores) is scores

    monkeypatch.setattr(module, "ranked", judge)
    start, names = LinearRows(graphs, LINEAR), statistics_names("layout", "plain")
    dataset = boosting_rows.binned(graphs, config, statistics_table("plain"), names)
    n_rows = sum(len(graph.rows) for graph in graphs)
    parameters = booster_parameters(config, n_rows, seed=0, threads=1)
    folds = row_folds(graphs, config.folds, seed=0)
    held_out_curve(graphs, dataset, parameters, config, fold_of=folds, start=start)
    assert sum(map(len, seen)) == n_rows
    for held_out, scores in seen.items():
        is_learned = ~np.isin(np.arange(n_rows), held_out)
        expected = -LINEAR_SCALE * start.fit(is_learned)[1][list(held_out)]
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_trees_that_begin_from_the_linear_ranker_add_to_its_scores(
    layout_files: list[GraphFile], tmp_path: Path
) -> None:
    config = BoostingConfig(linear_start=True, num_boost_round=60, min_rows_per_leaf=2)
    train(layout_files, config, tmp_path)
    recipe = Recipe(threads=1, layout_boosting=config)
    graph, ranker = read_graph(layout_files[0]), load_boosting("layout_boosting", tmp_path, recipe)
    assert ranker.start is not None
    first = distinct_configs(graph)[0]
    trees = ranker.booster.predict(statistics_of(graph, "plain")(first))
    linear = LINEAR_SCALE * ranker.start.score(graph)
    assert ranker.score(graph)[first] - linear[first] == pytest.approx(-np.asarray(trees), abs=1e-4)
    taus = [kendall_tau(scores, graph.runtime_ns) for scores in (linear, ranker.score(graph))]
    assert taus[1] > taus[0]
    (tmp_path / "linear.json").unlink()
    with pytest.raises(PipelineError, match=r"linear\.json: cannot be read"):
        load_boosting("layout_boosting", tmp_path, recipe)


@pytest.mark.parametrize("first_row", [0, 5, 6])
@pytest.mark.parametrize("max_pairs", [1, 20, 1 << 21])
def test_derivatives_are_those_of_the_loss(
    first_row: int, max_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold of a cross-validation learns some rows of the dataset."""
    monkeypatch.setattr(module, "MAX_PAIRS", max_pairs)
    rng, sizes = np.random.default_rng(0), [5, 1, 7, 2]
    scores, runtime = rng.normal(size=15), rng.integers(0, 4, 15).astype(float)
    scores[13:], runtime[13:] = (-1e6, 1e6), (1, 2)
    dataset = lightgbm.Dataset(rng.normal(size=(15, 1)), group=sizes, params={"verbosity": -1})
    if first_row:
        dataset = dataset.subset(list(range(first_row, 15))).construct()
    gradient, hessian = pairwise_logistic(runtime)(scores[first_row:], dataset)
    expected = np.zeros((2, 15))
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        group = range(max(first_row, end - size), end)
        for fast, slow in itertools.permutations(group, 2):
            if runtime[fast] < runtime[slow]:
                wrong = expit(scores[slow] - scores[fast])
                expected[0, [fast, slow]] += np.array([-wrong, wrong]) / len(group)
                expected[1, [fast, slow]] += wrong * (1 - wrong) / len(group)
    np.testing.assert_allclose(gradient, expected[0, first_row:], atol=1e-6)
    np.testing.assert_allclose(hessian, np.maximum(expected[1, first_row:], 1e-6), atol=1e-6)
