"""The untrained baselines against their formulas."""

from dataclasses import replace

import numpy as np
import pytest

from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph
from data.tree import GraphFile
from features.statistics.configs import statistics_names, statistics_of
from models.trees.baseline import BASELINES


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
    graph, names = read_graph(files[kind][0]), statistics_names(kind, "plain")
    if isinstance(graph, TileGraph):
        config_feat = graph.config_feat.copy()
        config_feat[:, 7] = 1 + np.arange(len(config_feat)) % 9  # product of kernel bounds
        graph = replace(graph, config_feat=config_feat)
    columns = statistics_of(graph, "plain")(np.arange(graph.n_configs))
    expected = sum(weight * columns[:, names.index(name)] for name, weight in weights.items())
    assert all(np.ptp(columns[:, names.index(name)]) > 0 for name in weights)
    np.testing.assert_allclose(BASELINES[kind].score(graph), expected, rtol=1e-5)
