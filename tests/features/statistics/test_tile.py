"""Tile statistics against a loop over configs and dimensions that a reader can follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import TileGraph
from data.graphs.node_columns import ELEMENT_BYTES
from data.graphs.node_layouts import tensor_ranks
from features.statistics.tile import TILE_STATISTICS, output_node, tile_statistics
from tests.features.graphs import random_tile_graph
from tests.real_data import real_tile_graphs, requires_real_data

OPCODES = {"convolution": 26, "dot": 34, "reshape": 75, "parameter": 63}


def node_bytes(graph: TileGraph, node: int) -> float:
    features = graph.node_feat[node]
    kind = next(i for i in range(19) if features[2 + i])
    return float(ELEMENT_BYTES[kind]) * float(features[28])


def slow_output(graph: TileGraph) -> int:
    """The first of the largest roots; of all nodes where none is marked as a root."""
    roots = [n for n in range(graph.n_nodes) if graph.node_feat[n, 0] > 0]
    best = None
    for node in roots or range(graph.n_nodes):
        if best is None or node_bytes(graph, node) > node_bytes(graph, best):
            best = node
    assert best is not None
    return best


def slow_statistics(graph: TileGraph, config: NDArray[np.float32]) -> dict[str, float]:
    found: dict[str, float] = {}
    names = (*map(str, range(6)), "sum", "product")
    for part, values in zip(("kernel", "output", "input"), config.reshape(3, 8), strict=True):
        for name, value in zip(names, values.tolist(), strict=True):
            found[f"log_{part}_bounds_{name}"] = math.log1p(abs(value))
    output = graph.node_feat[slow_output(graph)]
    rank = int(tensor_ranks(output[None])[0])
    sizes = output[21 : 21 + rank].tolist()
    steps, covered = 1, 1.0
    for dimension in range(6):
        size = max(sizes[dimension], 1) if dimension < rank else 1
        bound = config[8 + dimension] if config[8 + dimension] > 0 else size
        steps *= math.ceil(size / bound)
        covered *= float(bound)
    elements = math.prod(max(size, 1) for size in sizes)
    found["log_steps"] = math.log(steps)
    found["log_waste"] = math.log(steps * covered / elements)
    minor = int(output[134])
    minor_size = max(sizes[minor], 1) if rank else 1
    minor_bound = config[8 + minor] if config[8 + minor] > 0 else minor_size
    found["minor_bound_share"] = min(float(minor_bound) / minor_size, 1.0)
    found["log_nodes"] = math.log1p(graph.n_nodes)
    found["log_output_elements"] = math.log1p(output[28])
    found["log_output_bytes"] = math.log1p(node_bytes(graph, slow_output(graph)))
    parameters = [n for n in range(graph.n_nodes) if graph.node_opcode[n] == 63]
    found["log_parameter_bytes"] = math.log1p(sum(node_bytes(graph, n) for n in parameters))
    for i in range(6):
        found[f"log_output_dimension_{i}"] = math.log1p(sizes[i]) if i < rank else 0.0
    for name, number in OPCODES.items():
        found[f"log_count_{name}"] = math.log1p((graph.node_opcode == number).sum())
    return found


def check(graph: TileGraph) -> NDArray[np.float32]:
    statistics = tile_statistics(graph)
    assert statistics.dtype == np.float32
    assert statistics.shape == (graph.n_configs, len(TILE_STATISTICS))
    for row, config in zip(statistics, graph.config_feat, strict=True):
        want = slow_statistics(graph, config)
        assert set(want) == set(TILE_STATISTICS)
        for name, value in zip(TILE_STATISTICS, row.tolist(), strict=True):
            assert value == pytest.approx(want[name], rel=2e-5, abs=2e-5), name
    return statistics


def test_random_kernels_equal_the_loop() -> None:
    together = np.concatenate([check(random_tile_graph(seed)) for seed in range(80)])
    for column, name in enumerate(TILE_STATISTICS):
        assert len(np.unique(together[:, column])) > 2, name


def test_a_made_kernel_equals_the_loop(tile_graph: TileGraph) -> None:
    check(tile_graph)


@requires_real_data
def test_real_kernels_equal_the_loop() -> None:
    for graph in real_tile_graphs():
        check(graph)


def test_the_output_is_the_root_of_most_bytes() -> None:
    for seed in range(80):
        graph = random_tile_graph(seed)
        assert output_node(graph) == slow_output(graph)
        rootless = graph.node_feat.copy()
        rootless[:, 0] = 0
        assert output_node(replace(graph, node_feat=rootless)) == slow_output(
            replace(graph, node_feat=rootless)
        )


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_configs_and_nodes_does_not_matter(seed: int) -> None:
    graph = random_tile_graph(seed)
    rng = np.random.default_rng(seed)
    configs, nodes = rng.permutation(graph.n_configs), rng.permutation(graph.n_nodes)
    other = replace(
        graph,
        config_feat=graph.config_feat[configs],
        node_feat=graph.node_feat[nodes],
        node_opcode=graph.node_opcode[nodes],
    )
    np.testing.assert_allclose(
        tile_statistics(other), tile_statistics(graph)[configs], rtol=1e-6, atol=1e-6
    )
