"""Linear rankers and untrained baselines against plain algebra."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph, distinct_configs, group_means
from data.tree import GraphFile
from features.statistics.configs import ALL_STATISTICS, STATISTICS, statistics_of
from models.config.recipe import Recipe
from models.config.trees import LinearConfig
from models.registry import TrainJob
from models.trees.baseline import BASELINES
from models.trees.linear import MODEL_FILE, LinearRanker, LinearRows, load_linear, train_linear
from models.trees.rows import sample_rows


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_weights_solve_the_ridge_equations(
    kind: str, files: dict[str, list[GraphFile]], tmp_path: Path
) -> None:
    config = LinearConfig(configs_per_graph=1000, penalty=10.0)
    name, recipe = f"{kind}_linear", Recipe(**{f"{kind}_linear": config})
    train_linear(TrainJob(name, recipe, files[kind][:3], 0, tmp_path))
    rows, targets = [], []
    for graph in map(read_graph, files[kind][:3]):
        first, group = distinct_configs(graph)
        # A normalizer divides all runtimes of a graph, so the ranks do not change.
        means = group_means(graph.runtime_ns, group)
        ranks = np.asarray([(means < m).sum() + ((means == m).sum() + 1) / 2 for m in means])
        statistics = statistics_of(graph, "all")(first)
        rows.append(statistics - statistics.mean(axis=0))
        targets.append((ranks - ranks.mean()) / ranks.std())
    x, y = np.concatenate(rows).astype(np.float64), np.concatenate(targets)
    scale = np.sqrt(np.square(x).mean(axis=0) - np.square(x.mean(axis=0)))
    scale[scale < 1e-12] = 1
    z = x / scale
    want = np.linalg.solve(z.T @ z + 10.0 * np.eye(z.shape[1]), z.T @ y) / scale
    content = json.loads((tmp_path / MODEL_FILE).read_text())
    assert tuple(content) == ALL_STATISTICS[kind]
    weights, limits = np.asarray(list(content.values())).T
    predicted = x @ weights
    np.testing.assert_allclose(limits, 10 * scale, rtol=1e-3)
    np.testing.assert_allclose(predicted, x @ want, atol=1e-3 * np.abs(y).max())
    graph = read_graph(files[kind][0])
    scores = load_linear(name, tmp_path, recipe).score(graph)
    assert kendall_tau(scores, graph.runtime_ns) > 0.2
    with pytest.raises(PipelineError, match="of other statistics; remove its folder, and those"):
        load_linear(name, tmp_path, Recipe(**{name: LinearConfig(statistics="plain")}))
    (tmp_path / MODEL_FILE).write_text("{")
    with pytest.raises(PipelineError, match="cannot be read"):
        load_linear(name, tmp_path, recipe)


def test_rows_that_are_not_learned_change_no_weight(files: dict[str, list[GraphFile]]) -> None:
    config = LinearConfig(configs_per_graph=40)
    graphs, rng = sample_rows(files["layout"][:3], config, 0), np.random.default_rng(0)
    shares = zip(graphs, (0.5, 0, 0.8), strict=True)
    is_learned = [rng.random(len(graph.rows)) < share for graph, share in shares]
    part = [
        replace(graph, rows=graph.rows[kept], runtime=graph.runtime[kept])
        for graph, kept in zip(graphs, is_learned, strict=True)
        if kept.any()
    ]
    ranker, scores = LinearRows(graphs, config).fit(np.concatenate(is_learned))
    alone, _ = LinearRows(part, config).fit()
    np.testing.assert_allclose([*ranker.weights.values()], [*alone.weights.values()], rtol=1e-9)
    expected = [alone.of(statistics_of(read_graph(g.file), "all")(g.rows)) for g in graphs]
    np.testing.assert_allclose(scores, np.concatenate(expected))


def test_a_statistic_that_hardly_varied_in_training_does_not_determine_the_order() -> None:
    ranker = LinearRanker({"rare": (100.0, 0.01), "usual": (1.0, 10.0)}, "plain")
    scores = ranker.of(np.array([[5.0, 3], [0, 1], [-5, 9]], dtype=np.float32))
    # Columns without their mean are 5, 0, -5 and -4/3, -10/3, 14/3.
    np.testing.assert_allclose(scores, [1 - 4 / 3, -10 / 3, -1 + 14 / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("layout", {"copied_bytes_share": 1}),
        ("tile", {"log_steps": 1, "log_kernel_bounds_product": -0.001}),
    ],
)
def test_baselines_rank_few_copied_bytes_and_few_large_steps_first(
    kind: str, weights: dict[str, float], files: dict[str, list[GraphFile]]
) -> None:
    graph = read_graph(files[kind][4])
    if isinstance(graph, TileGraph):
        config_feat = graph.config_feat.copy()
        config_feat[:, 7] = 1 + np.arange(len(config_feat)) % 9  # product of kernel bounds
        graph = replace(graph, config_feat=config_feat)
    columns = statistics_of(graph, "plain")(np.arange(graph.n_configs)).T
    terms = {name: columns[STATISTICS[kind].index(name)] for name in weights}
    assert all(np.ptp(term) > 0 for term in terms.values())
    expected = sum(weight * terms[name] for name, weight in weights.items())
    np.testing.assert_allclose(BASELINES[kind].score(graph), expected, rtol=1e-5)
