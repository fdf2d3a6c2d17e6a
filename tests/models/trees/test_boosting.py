"""Boosting against plain loops: rows that are streamed, rounds that folds choose, derivatives."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightgbm
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.accuracy.tasks import split_distinct, write_configs
from common.errors import PipelineError
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_graph, read_layout
from data.graphs.graph import config_hashes, distinct_configs
from data.tree import GraphFile, collection_named
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import Recipe, load_recipe
from models.config.trees import BoostingConfig
from models.registry import TrainJob
from models.trees import boosting, rows
from models.trees.boosting import IMPORTANCES, MODEL_FILE, BoostingRanker, load_boosting
from models.trees.linear import LINEAR, LINEAR_SCALE, LinearRows
from models.trees.rows import GraphRows, relevance, sample_rows, statistics_table
from tests.support.real_data import real_file, requires_real_data

NAME = "layout_boosting"


def train(
    files: list[GraphFile], config: BoostingConfig, folder: Path, seed: int = 3
) -> BoostingRanker:
    recipe = Recipe(threads=1, layout_boosting=config)
    boosting.train_boosting(TrainJob(NAME, recipe, files, seed, folder))
    return load_boosting(NAME, folder, recipe)


def layout_rows(name: str, runtime: list[float] | NDArray[np.float64]) -> GraphRows:
    file = GraphFile(collection_named("layout:xla:random"), "train", name, Path(name))
    values = np.asarray(runtime, float)
    return GraphRows(file, np.arange(len(values)), values)


@pytest.mark.parametrize(
    ("runtime", "levels", "expected"),
    [
        ([5, 1, 3], 3, [0, 2, 1]),
        ([5, 1, 3, 3], 32, [0, 31, 16, 16]),
        ([7, 7], 32, [31, 31]),
        ([1, 2, 3, 4, 5], 2, [1, 1, 0, 0, 0]),
    ],
)
def test_levels_are_shares_of_the_distinct_runtimes(
    runtime: list[float], levels: int, expected: list[int]
) -> None:
    assert relevance(np.array(runtime, float), levels).tolist() == expected


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_samples_are_random_distinct_configs_with_their_mean_runtimes(
    kind: str, files: dict[str, list[GraphFile]]
) -> None:
    file, config = files[kind][0], BoostingConfig(configs_per_graph=12)
    graph = read_graph(file)
    hashes, runtime = config_hashes(graph), graph.runtime_ns.astype(float)
    if kind == "tile":
        runtime /= graph.runtime_normalizers  # type: ignore[attr-defined]
    samples = [*sample_rows([file, file], config, 3), *sample_rows([file], config, 4)]
    for sample in samples:
        assert len({*hashes[sample.rows].tolist()}) == len(sample.rows) == min(12, len({*hashes}))
        means = [runtime[hashes == hashes[row]].mean() for row in sample.rows]
        np.testing.assert_allclose(sample.runtime, means)
    orders = [sample.rows.tolist() for sample in samples]
    assert len({*map(tuple, orders)}) == 3, "each graph and seed has its sample"
    assert all(order != sorted(order) for order in orders)
    assert sample_rows([file], config, 3)[0].rows.tolist() == orders[0]


@pytest.mark.parametrize(
    ("n", "at_most", "sizes"), [(10, 4, [4, 3, 3]), (8, 4, [4, 4]), (3, 10, [3])]
)
def test_groups_are_as_few_and_as_equal_as_possible(n: int, at_most: int, sizes: list[int]) -> None:
    assert layout_rows("a", np.arange(n)).groups(at_most) == sizes


@pytest.mark.parametrize(
    ("n_rows", "at_most", "rows_per_leaf"),
    [
        (7, 20, 1),
        (12, 20, 1),
        (16, 20, 2),
        (255, 20, 2),
        (1280, 20, 10),
        (9999, 20, 20),
        (500, 1, 1),
    ],
)
def test_leaves_of_few_rows_are_smaller(n_rows: int, at_most: int, rows_per_leaf: int) -> None:
    parameters = rows.dataset_parameters(BoostingConfig(min_rows_per_leaf=at_most), n_rows)
    assert parameters["min_data_in_leaf"] == rows_per_leaf
    assert parameters["min_data_in_bin"] == min(3, rows_per_leaf)


def test_streamed_blocks_of_rows_are_those_of_one_table(
    layout_files: list[GraphFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BLOCK_ROWS", 7)
    config = BoostingConfig(min_rows_per_leaf=2)
    graphs = sample_rows(layout_files, config, 0)
    names = statistics_names("layout", "all")
    streamed = rows.bin_rows(graphs, config, statistics_table("all"), names)
    table = np.concatenate([statistics_of(read_graph(g.file), "all")(g.rows) for g in graphs])
    in_memory = lightgbm.Dataset(
        table,
        np.concatenate([relevance(graph.runtime, 32) for graph in graphs]),
        group=[len(graph.rows) for graph in graphs],
        feature_name=list(names),
        params=rows.dataset_parameters(config, len(table)),
    )
    parameters = boosting.booster_parameters(config, len(table), seed=0, threads=1)
    first, second = (
        lightgbm.train(parameters, dataset, 5).predict(table) for dataset in (streamed, in_memory)
    )
    assert first.std() > 0
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("objective", ["lambdarank", "pairwise_logistic", "squared_error"])
def test_a_few_rows_are_enough_and_other_statistics_or_texts_are_refused(
    objective, layout_files: list[GraphFile], tmp_path: Path
) -> None:
    config = BoostingConfig(objective=objective, configs_per_graph=6, num_boost_round=3)
    assert max(train(layout_files[:1], config, tmp_path).booster.feature_importance("gain")) > 0
    other = Recipe(layout_boosting=BoostingConfig(statistics="all"))
    with pytest.raises(PipelineError, match="of other statistics; remove its folder, and those"):
        load_boosting(NAME, tmp_path, other)
    (tmp_path / MODEL_FILE).write_text("tree")
    with pytest.raises(PipelineError, match=r"booster\.txt: not a LightGBM model"):
        load_boosting(NAME, tmp_path, other)


def splits_of(tree: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Yield feature and gain of each split of a tree."""
    node = tree.get("tree_structure", tree)
    if "split_feature" in node:
        yield node["split_feature"], node["split_gain"]
        for child in ("left_child", "right_child"):
            yield from splits_of(node[child])


def test_keys_of_the_recipe_reach_the_trees(
    files: dict[str, list[GraphFile]], tmp_path: Path
) -> None:
    keys = {"learning_rate": 0.07, "num_leaves": 5, "feature_fraction": 0.4}
    config = BoostingConfig(**keys, num_boost_round=6, configs_per_graph=40, configs_per_group=9)
    booster = train(files["layout"][:2], config, tmp_path).booster
    lines = (tmp_path / MODEL_FILE).read_text().splitlines()
    for key, value in {**keys, "seed": 3, "lambdarank_truncation_level": 9}.items():
        assert f"[{key}: {value}]" in lines
    assert booster.num_trees() == 6
    splits = [split for tree in booster.dump_model()["tree_info"] for split in splits_of(tree)]
    table = pl.read_parquet(tmp_path / IMPORTANCES)
    for place, name in enumerate(booster.feature_name()):
        gains = [gain for feature, gain in splits if feature == place]
        (row,) = table.filter(pl.col("statistic") == name).iter_rows()
        assert row[1:] == (pytest.approx(sum(gains), rel=1e-4), len(gains))
    assert table["gain"].is_sorted(descending=True)


def test_importances_are_averaged_over_models(tmp_path: Path) -> None:
    for seed, (gain, splits) in enumerate((([3.0, 1.0], [1, 1]), ([0.0, 5.0], [0, 4]))):
        (tmp_path / str(seed)).mkdir()
        table = {"statistic": ["a", "b"], "gain": gain, "splits": splits}
        pl.DataFrame(table).write_parquet(tmp_path / str(seed) / IMPORTANCES)
    importances = boosting.read_importances([tmp_path / "0", tmp_path / "1", tmp_path / "none"])
    assert importances is not None
    assert importances.rows() == [("b", 0.625, 0.75), ("a", 0.375, 0.25)]
    assert boosting.read_importances([tmp_path / "none"]) is None


def test_folds_keep_families_apart_and_part_the_configs_of_one() -> None:
    names = ["alpha_b1", "beta_b1", "alpha_b2", "gamma_b1", "beta_b4"]
    folds = boosting.row_folds([layout_rows(name, [1, 2, 3]) for name in names], 3, seed=0)
    folds = folds.reshape(5, 3)
    assert (folds == folds[:, :1]).all()
    assert folds[0, 0] == folds[2, 0] and folds[1, 0] == folds[4, 0]
    assert sorted(set(folds[:, 0].tolist())) == [0, 1, 2]
    graphs = [layout_rows(f"{name}_b1", [1, 2]) for name in "abcdefg"]
    assert len({tuple(boosting.row_folds(graphs, 3, seed).tolist()) for seed in range(6)}) > 1
    graphs = [layout_rows(name, [1, 2, 3, 4]) for name in ("alpha_b1", "alpha_b2")]
    assert boosting.row_folds(graphs, 2, seed=0).tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_held_out_rows_are_judged_graph_by_graph() -> None:
    graphs = [layout_rows("a_b1", [1, 2, 3, 4]), layout_rows("b_b1", [4, 2, 1])]
    held_out = np.asarray([0, 2, 3, 4, 5, 6])
    scores = np.asarray([3.0, 1.0, 2.0, 9.0, 8.0, 7.0])
    first = kendall_tau(-scores[:3], np.asarray([1.0, 3.0, 4.0]))
    second = kendall_tau(-scores[3:], graphs[1].runtime)
    assert boosting.held_out_score(graphs, held_out, scores) == pytest.approx((first + second) / 2)


TWO_FAMILIES = [layout_rows(name, np.arange(1, 12)) for name in ("a_b1", "b_b1")]


def test_the_best_round_is_that_of_the_mean_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, fold 0 would be best at round 2 and stop at 5, before the best round of the mean."""
    config = BoostingConfig(num_boost_round=50, early_stop=3, folds=2, min_rows_per_leaf=1)
    table = np.random.default_rng(0).normal(size=(22, 3)).astype(np.float32)
    dataset = rows.bin_rows(TWO_FAMILIES, config, lambda _, some: table[some], list("abc"))
    parameters = boosting.booster_parameters(config, 22, seed=0, threads=1)
    folds = boosting.row_folds(TWO_FAMILIES, 2, seed=0)
    quality = {0: [0.2, 1.0, 0.4, 0.6, 0.7, 0.8, 0.8], 1: [0.2, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7]}
    n_rounds = {0: 0, 1: 0}

    def judge(_: object, held_out: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        assert len(scores) == len(held_out) == 11
        (fold,) = set(folds[held_out].tolist())
        n_rounds[fold] += 1
        return [*quality[fold], 0, 0, 0][n_rounds[fold] - 1]

    monkeypatch.setattr(boosting, "held_out_score", judge)
    assert boosting.choose_capacity(TWO_FAMILIES, dataset, parameters, config, seed=0) == (31, 7)
    assert n_rounds == {0: 10, 1: 10}


@pytest.mark.parametrize(
    ("scores", "leaves"), [([0.5, 0.4], 3), ([0.5, 0.6, 0.6], 7), ([0.5, 0.6, 0.7], 15)]
)
def test_leaves_are_doubled_while_held_out_graphs_are_ranked_better(
    scores: list[float], leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BoostingConfig(num_boost_round=5, early_stop=1, num_leaves=3, max_leaves=30)
    trials = []

    def cross_validate(parameters: dict[str, int], *_: object, **__: object) -> dict[str, object]:
        trials.append(parameters["num_leaves"])
        return {"valid score-mean": [0.1, scores[len(trials) - 1]]}

    monkeypatch.setattr(lightgbm, "cv", cross_validate)
    assert boosting.choose_capacity(TWO_FAMILIES, None, {}, config, seed=0) == (leaves, 2)
    assert trials == [3, 7, 15][: len(scores)]


def test_folds_begin_from_rankers_that_have_not_learned_their_graphs(
    layout_files: list[GraphFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BoostingConfig(num_boost_round=2, early_stop=1, folds=2, learning_rate=1e-9)
    graphs = sample_rows(layout_files, config, 0)
    scores_of = {}

    def judge(_: object, held_out: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
        return scores_of.setdefault(tuple(held_out), scores) is scores

    monkeypatch.setattr(boosting, "held_out_score", judge)
    start, names = LinearRows(graphs, LINEAR), statistics_names("layout", "plain")
    dataset = rows.bin_rows(graphs, config, statistics_table("plain"), names)
    n_rows = sum(len(graph.rows) for graph in graphs)
    parameters = boosting.booster_parameters(config, n_rows, seed=0, threads=1)
    boosting.choose_capacity(graphs, dataset, parameters, config, seed=0, start=start)
    assert sum(map(len, scores_of)) == n_rows
    for held_out, scores in scores_of.items():
        is_learned = ~np.isin(np.arange(n_rows), held_out)
        expected = -LINEAR_SCALE * start.fit(is_learned)[1][list(held_out)]
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_trees_begin_from_the_linear_ranker_and_have_the_capacity_of_the_folds(
    layout_files: list[GraphFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosting, "choose_capacity", lambda *_, **__: (5, 60))
    starts, fit = [], lightgbm.train

    def spy(parameters: Any, dataset: lightgbm.Dataset, rounds: int) -> lightgbm.Booster:
        starts.append(dataset.get_init_score())
        return fit(parameters, dataset, rounds)

    monkeypatch.setattr(lightgbm, "train", spy)
    config = BoostingConfig(early_stop=2, linear_start=True, min_rows_per_leaf=2)
    ranker = train(layout_files, config, tmp_path)
    assert ranker.booster.num_trees() == 60 and ranker.start is not None
    trees = ranker.booster.dump_model()["tree_info"]
    assert max(tree["num_leaves"] for tree in trees) == 5
    linear_rows = LinearRows(sample_rows(layout_files, config, 3), LINEAR)
    np.testing.assert_allclose(starts, [-LINEAR_SCALE * linear_rows.fit()[1]])
    graph = read_graph(layout_files[0])
    first = distinct_configs(graph)[0]
    of_trees = np.asarray(ranker.booster.predict(statistics_of(graph, "plain")(first)))
    linear = LINEAR_SCALE * ranker.start.score(graph)
    assert ranker.score(graph)[first] - linear[first] == pytest.approx(-of_trees, abs=1e-4)
    taus = [kendall_tau(scores, graph.runtime_ns) for scores in (linear, ranker.score(graph))]
    assert taus[1] > taus[0]
    (tmp_path / "linear.json").unlink()
    with pytest.raises(PipelineError, match=r"linear\.json: cannot be read"):
        load_boosting(NAME, tmp_path, Recipe(threads=1, layout_boosting=config))


@pytest.mark.parametrize("first_row", [0, 5, 6])
@pytest.mark.parametrize("max_pairs", [1, 20, 1 << 21])
def test_derivatives_are_those_of_the_loss(
    first_row: int, max_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold of a cross-validation learns some rows of the dataset."""
    monkeypatch.setattr(boosting, "MAX_PAIRS", max_pairs)
    rng, sizes = np.random.default_rng(0), [5, 1, 7, 2]
    scores, runtime = rng.normal(size=15), rng.integers(0, 4, 15).astype(float)
    scores[13:], runtime[13:] = (-1e6, 1e6), (1, 2)
    dataset = lightgbm.Dataset(rng.normal(size=(15, 1)), group=sizes, params={"verbosity": -1})
    if first_row:
        dataset = dataset.subset(list(range(first_row, 15))).construct()
    gradient, hessian = boosting.pairwise_logistic(runtime)(scores[first_row:], dataset)
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


@requires_real_data
def test_small_files_of_a_tpu_program_are_ranked_as_well_as_large_ones(tmp_path: Path) -> None:
    graph = read_layout(real_file("layout:xla:default:unet3d"))
    n, config = len(distinct_configs(graph)[0]), load_recipe("cpu").layout_boosting
    small, large = [], []
    for seed in range(3):
        held_out, learned = split_distinct(n, seed)
        assert (len(learned), len(held_out)) == (545, 136)
        folder = tmp_path / str(seed)
        train_file = write_configs(graph, learned, folder, "train")
        ranker = train([train_file], config, folder / "run", seed)
        parts = [held_out, *np.array_split(held_out, 4)]
        graphs = [read_layout(write_configs(graph, part, folder, "valid")) for part in parts]
        taus = [kendall_tau(ranker.score(part), part.runtime) for part in graphs]
        large.append(taus[0])
        small.append(np.mean(taus[1:]))
    # With statistics that depend on the other configs of the file, small files have .644.
    assert np.mean(small) > 0.73
    assert np.mean(large) > 0.74


def test_squared_error_estimates_the_log_runtimes_of_each_group() -> None:
    runtime = np.array([9.0, 1.0, 2.0, 4.0, 9.0, 10.0, 20.0])
    dataset = SimpleNamespace(used_indices=np.array([1, 2, 3, 5, 6]), get_group=lambda: [3, 2])
    gradient, hessian = boosting.squared_error(runtime)(np.zeros(5), dataset)
    np.testing.assert_allclose(-gradient, [1.5**0.5, 0, -(1.5**0.5), 1, -1], atol=1e-12)
    np.testing.assert_array_equal(hessian, 1)
