"""Features, trees and weights of the rankers of a program, against slow formulas."""

from dataclasses import replace
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph, distinct_configs
from models.config.trees import ConfigColumnsConfig
from models.trees import program_trees as module
from models.trees.column_features import column_features
from models.trees.program_trees import FEW, ProgramTrees, TreeSettings, TreesName, ranker_weights
from models.trees.rows import GraphRows
from tests.features.graphs import random_layout_graph
from tests.models.trees.test_config_columns import costs


def test_features_are_one_hot_layouts_of_tensors() -> None:
    for seed in range(20):
        graph = random_layout_graph(seed)
        rows = np.arange(graph.n_configs)
        features = column_features(graph, rows)
        values = graph.configs.rows(rows).reshape(len(rows), -1, 3, 6).tolist()
        # Without the other rows, whose layouts are not in these two.
        for learned in (rows[:2], rows):
            found = column_features(graph, learned)
            expected = [
                [float(config[node][tensor] == layout) for config in values]
                for node, tensor, layout in zip(found.node, found.tensor, found.layout, strict=True)
            ]
            table = found.table(graph, rows)
            np.testing.assert_array_equal(table.T, np.asarray(expected).reshape(-1, len(rows)))
            assert (np.ptp(found.table(graph, learned), axis=0) == 1).all()
        assert len(set(features.names())) == len(features.names())
        # Distinct configs have distinct features, and no feature is a duplicate.
        table = features.table(graph, rows)
        first, _ = distinct_configs(graph)
        assert len(np.unique(table[first], axis=0)) == len(first)
        columns = {tuple(column) for column in table.T.tolist()}
        assert len(columns) == table.shape[1]
        assert not columns & {tuple(1 - value for value in column) for column in columns}


def trees_of(program: LayoutGraph, n_configs: int, seed: int = 0) -> tuple[ProgramTrees, GraphRows]:
    """Trees of the first configs, whose runtimes are partly noise and partly equal."""
    rows = np.unique(program.configs.content_hashes(), return_index=True)[1][:n_configs]
    cost, noise = costs(program)[rows], np.random.default_rng(seed).normal(size=len(rows))
    runtime = np.exp(np.round(cost / cost.std() + noise, 1))
    taken = GraphRows(program.file, rows, runtime)
    config = ConfigColumnsConfig(num_boost_round=40)
    return ProgramTrees(program, column_features(program, rows), config, seed, threads=1), taken


def slow_deviates(runtime: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normal deviate of each rank; equal runtimes share their mean rank."""
    ranks = [(runtime < one).sum() + ((runtime == one).sum() + 1) / 2 for one in runtime]
    return np.array([NormalDist().inv_cdf((rank - 0.5) / len(runtime)) for rank in ranks])


def test_trees_learn_the_normal_deviate_of_the_rank(
    program: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tree with a leaf for each config learns its labels by heart."""
    exact = TreeSettings(1 / 40, 1, {"learning_rate": 1.0, "num_leaves": 200})
    monkeypatch.setattr(module, "FEW", {"columns": exact})
    trees, taken = trees_of(program, 60)
    booster = trees.fit("columns", taken)
    assert booster.num_trees() == 1 and len(set(taken.runtime)) < 60
    found = booster.predict(trees.features.table(program, taken.rows))
    np.testing.assert_allclose(found, -slow_deviates(taken.runtime), atol=1e-5)


@pytest.mark.parametrize(("n_configs", "n_trees", "leaves"), [(50, 40, 7), (51, 200, 15)])
def test_more_configs_get_larger_trees_and_each_seed_gets_other_ones(
    n_configs: int, n_trees: int, leaves: int, program: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FEW_CONFIGS", 50)
    rate = 0.05 if n_configs == 50 else 0.1
    for seed in (0, 7):
        of_program, taken = trees_of(program, n_configs, seed)
        booster = of_program.fit("columns", taken)
        assert booster.num_trees() == n_trees
        for line in (f"[seed: {seed}]", f"[num_leaves: {leaves}]", f"[learning_rate: {rate}]"):
            assert line in booster.model_to_string()


def slow_weights(scores: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least squares of each set of columns; the best without a negative weight."""
    best, weights = float(np.square(wanted).sum()), np.zeros(scores.shape[1])
    for size in range(1, len(weights) + 1):
        for columns in map(list, combinations(range(len(weights)), size)):
            found = np.linalg.lstsq(scores[:, columns], wanted, rcond=None)[0]
            error = float(np.square(scores[:, columns] @ found - wanted).sum())
            if found.min() >= 0 and error < best:
                best, weights = error, np.zeros_like(weights)
                weights[columns] = found
    return weights / (weights.sum() or 1)


@pytest.mark.parametrize("seed", [12, 39])
def test_weights_next_to_a_forest_are_least_squares_of_scores_of_held_out_configs(
    program: LayoutGraph, seed: int
) -> None:
    trees, taken = trees_of(program, 63, seed)
    names: list[TreesName] = [*FEW]
    scores = np.zeros((63, len(names)))
    for fold in range(5):
        learned = np.array([place for place in range(63) if place % 5 != fold])
        part = replace(taken, rows=taken.rows[learned], runtime=taken.runtime[learned])
        for column, name in enumerate(names):
            booster = trees.fit(name, part)
            statistics = "all" if name == "both" else None
            table = trees.features.rows_of(program, statistics)(taken.rows)
            scores[fold::5, column] = np.asarray(booster.predict(table))[fold::5]
    expected = slow_weights(scores, -slow_deviates(taken.runtime))
    found = trees.stacked_weights(taken)
    assert len(found) > 1
    np.testing.assert_allclose([found.get(name, 0) for name in names], expected, atol=1e-6)


def test_equal_weights_if_no_ranker_helps(
    program: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, taken = trees_of(program, 40)
    monkeypatch.setattr(module, "nnls", lambda a, b: (np.zeros(a.shape[1]), 0.0))
    assert trees.stacked_weights(taken) == pytest.approx(dict.fromkeys(FEW, 1 / 3))


@pytest.mark.parametrize(
    ("n_configs", "n_features", "third", "weight"),
    [
        (90, 300, "linear", 1 / 3),
        (1000, 500, "linear", 0.1 / 2.1),
        (90, 30, "forest", 1 / 3),
        (5000, 30, None, 0),
        (20000, 300, None, 0),
    ],
)
def test_the_third_ranker_follows_from_configs_and_features(
    n_configs: int, n_features: int, third: str | None, weight: float
) -> None:
    weights = ranker_weights(n_configs, n_features)
    assert sum(weights.values()) == pytest.approx(1)
    boosters = ["columns", "both"][: 2 if n_configs <= 10_000 else 1]
    assert [*weights] == [*boosters, *([third] if third else [])]
    assert weights.get(third, 0) == pytest.approx(weight)
