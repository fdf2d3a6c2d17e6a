"""The rows that trees learn from, and the keys that reach LightGBM, against plain loops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import polars as pl
import pytest

from data.graph_store.stored_graph import read_graph
from data.graphs.graph import config_hashes
from data.tree import GraphFile
from features.statistics.configs import statistics_names
from models.config.recipe import BoostingConfig, Recipe
from models.registry import TrainJob
from models.trees import boosting
from models.trees.boosting import IMPORTANCES, fit_trees
from models.trees.linear import LINEAR, LINEAR_SCALE, LinearRows
from models.trees.rows import (
    GraphRows,
    dataset_parameters,
    relevance,
    sample_rows,
    statistics_table,
)


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
    one, twin = sample_rows([file, file], config, 3)
    for rows in (one, twin):
        assert len({*hashes[rows.rows].tolist()}) == len(rows.rows) == min(12, len({*hashes}))
        means = [runtime[hashes == hashes[row]].mean() for row in rows.rows]
        np.testing.assert_allclose(rows.runtime, means)
    (other,) = sample_rows([file], config, 4)
    taken = [rows.rows.tolist() for rows in (one, twin, other)]
    assert len({*map(tuple, taken)}) == 3, "each graph and seed has its sample"
    assert all(rows != sorted(rows) for rows in taken)
    (again,) = sample_rows([file], config, 3)
    assert again.rows.tolist() == taken[0]


def test_groups_are_as_few_and_as_equal_as_possible(files: dict[str, list[GraphFile]]) -> None:
    for n, at_most, expected in ((10, 4, [4, 3, 3]), (8, 4, [4, 4]), (3, 10, [3])):
        rows = GraphRows(files["tile"][0], np.arange(n), np.arange(n, dtype=float))
        assert rows.groups(at_most) == expected


@pytest.mark.parametrize(
    ("n_rows", "wanted", "rows_per_leaf"),
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
def test_leaves_of_few_rows_are_smaller(n_rows: int, wanted: int, rows_per_leaf: int) -> None:
    parameters = dataset_parameters(BoostingConfig(min_rows_per_leaf=wanted), n_rows)
    assert parameters["min_data_in_leaf"] == rows_per_leaf
    assert parameters["min_data_in_bin"] == min(3, rows_per_leaf)


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
    recipe = Recipe(threads=1, layout_boosting=config)
    boosting.train_boosting(TrainJob("layout_boosting", recipe, files["layout"][:2], 3, tmp_path))
    lines = (tmp_path / boosting.MODEL_FILE).read_text().splitlines()
    for key, value in {**keys, "seed": 3, "lambdarank_truncation_level": 9}.items():
        assert f"[{key}: {value}]" in lines
    booster = boosting.load_boosting("layout_boosting", tmp_path, recipe).booster
    assert booster.num_trees() == 6
    splits = [split for tree in booster.dump_model()["tree_info"] for split in splits_of(tree)]
    table = pl.read_parquet(tmp_path / IMPORTANCES)
    for place, name in enumerate(booster.feature_name()):
        gains = [gain for feature, gain in splits if feature == place]
        (row,) = table.filter(pl.col("statistic") == name).iter_rows()
        assert row[1:] == (pytest.approx(sum(gains), rel=1e-4), len(gains))
    assert table["gain"].is_sorted(descending=True)


def test_trees_have_the_capacity_of_the_folds_and_begin_from_the_linear_ranker(
    files: dict[str, list[GraphFile]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosting, "choose_capacity", lambda *_, **__: (5, 4))
    starts, fit = [], lightgbm.train

    def spy(parameters: Any, dataset: lightgbm.Dataset, rounds: int) -> lightgbm.Booster:
        starts.append(dataset.get_init_score())
        return fit(parameters, dataset, rounds)

    monkeypatch.setattr(lightgbm, "train", spy)
    config = BoostingConfig(early_stop=2, linear_start=True, configs_per_graph=30)
    graphs = sample_rows(files["layout"][:2], config, 0)
    start, names = LinearRows(graphs, LINEAR), statistics_names("layout", "plain")
    table = statistics_table("plain")
    booster = fit_trees(config, graphs, table, names, seed=0, threads=1, start=start)
    np.testing.assert_allclose(starts, [-LINEAR_SCALE * start.fit()[1]])
    assert booster.num_trees() == 4
    assert max(tree["num_leaves"] for tree in booster.dump_model()["tree_info"]) == 5
