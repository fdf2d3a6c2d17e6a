"""Layout statistics against a loop over configs and nodes that a reader can follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import ELEMENT_BYTES
from data.graphs.node_layouts import tensor_ranks
from features.layout_codes import minor_codes
from features.statistics.layout import (
    LAYOUT_STATISTICS,
    layout_statistics,
    layout_tables,
    output_bytes,
)
from tests.features.graphs import random_layout_graph, relabelled
from tests.features.statistics.test_layout_paths import slow_pairs
from tests.real_data import real_layout_graphs, requires_real_data

OPCODES = {"convolution": 26, "dot": 34, "reshape": 75}
TENSORS = ("output", "input", "kernel")


def node_bytes(graph: LayoutGraph, node: int) -> float:
    features = graph.node_feat[node]
    kind = next(i for i in range(19) if features[2 + i])
    return float(ELEMENT_BYTES[kind]) * float(features[28])


def padding_factor(graph: LayoutGraph, node: int, minor: int, second: int) -> float:
    """How the 8 x 128 tile grows a tensor whose two minor dimensions these are."""
    rank = int(tensor_ranks(graph.node_feat[[node]])[0])
    factor = 1.0
    for dimension, tile in ((minor, 128), (second, 8)):
        if 0 <= dimension < rank:
            size = int(graph.node_feat[node, 21 + dimension])
            if size > 0:
                factor *= math.ceil(size / tile) * tile / size
    return factor


def slow_statistics(graph: LayoutGraph, values: NDArray[np.int8]) -> dict[str, float]:
    """Compute the statistics of one config (k, 18), by name."""
    nodes = graph.node_config_ids.tolist()
    bytes_of = {node: node_bytes(graph, node) for node in range(graph.n_nodes)}
    total = max(sum(bytes_of[node] for node in nodes), 1.0)
    layouts = {node: values[place].reshape(3, 6).tolist() for place, node in enumerate(nodes)}
    found = dict.fromkeys(LAYOUT_STATISTICS, 0.0)
    padded = 0.0
    chosen = {}
    for node in nodes:
        share = bytes_of[node] / total
        group = [name for name, number in OPCODES.items() if graph.node_opcode[node] == number]
        for tensor, layout in zip(TENSORS, layouts[node], strict=True):
            minor = "default" if layout[0] < 0 else layout[0]
            for name in group:
                found[f"{tensor}_minor_{minor}_{name}"] += share
        rank = int(tensor_ranks(graph.node_feat[[node]])[0])
        own = [*graph.node_feat[node, 134 : 134 + rank].astype(int).tolist(), -1, -1][:2]
        output = layouts[node][0][:2]
        chosen[node] = own if output == [-1, -1] else output
        for name in group:
            found[f"output_as_default_{name}"] += share * (chosen[node] == own)
        padded += share * padding_factor(graph, node, *chosen[node])
    found["log_padding"] = math.log(max(padded, 1e-6))
    add_copies(found, graph, layouts, chosen, bytes_of)
    found["log_nodes"] = math.log1p(graph.n_nodes)
    found["log_configurable"] = math.log1p(len(nodes))
    found["log_bytes"] = math.log1p(sum(bytes_of.values()))
    for name, number in OPCODES.items():
        found[f"share_{name}"] = sum(graph.node_opcode[n] == number for n in nodes) / len(nodes)
    return found


def add_copies(
    found: dict[str, float],
    graph: LayoutGraph,
    layouts: dict[int, list[list[int]]],
    chosen: dict[int, list[int]],
    bytes_of: dict[int, float],
) -> None:
    pairs = slow_pairs(graph, 64)
    moved = max(sum(bytes_of[producer] for _, producer in pairs), 1.0)
    for consumer, producer in pairs:
        wanted = [layout[:2] for layout in layouts[consumer][1:]]
        named = [layout for layout in wanted if layout != [-1, -1]]
        if not named:
            found["open_edges_share"] += 1 / len(pairs)
        elif chosen[producer] not in named:
            found["copied_edges_share"] += 1 / len(pairs)
            found["copied_bytes_share"] += bytes_of[producer] / moved


def check(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    values = graph.configs.rows(rows)
    statistics = layout_statistics(layout_tables(graph), minor_codes(values))
    assert statistics.dtype == np.float32
    assert statistics.shape == (len(rows), len(LAYOUT_STATISTICS))
    for row, config in zip(statistics, values, strict=True):
        want = slow_statistics(graph, config)
        for name, value in zip(LAYOUT_STATISTICS, row.tolist(), strict=True):
            assert value == pytest.approx(want[name], rel=2e-5, abs=2e-6), name
    return statistics


def all_statistics(graph: LayoutGraph) -> NDArray[np.float32]:
    values = graph.configs.rows(np.arange(graph.n_configs))
    return layout_statistics(layout_tables(graph), minor_codes(values))


def test_random_graphs_equal_the_loop() -> None:
    """And none of the statistics is idle: over the graphs, each takes several values."""
    tables = [
        check(graph, np.arange(graph.n_configs)) for graph in map(random_layout_graph, range(40))
    ]
    together = np.concatenate(tables)
    for column, name in enumerate(LAYOUT_STATISTICS):
        assert len(np.unique(together[:, column])) > 2, name


@requires_real_data
def test_real_graphs_equal_the_loop() -> None:
    for graph in real_layout_graphs(max_bytes=120_000):
        rng = np.random.default_rng(0)
        check(graph, rng.choice(graph.n_configs, 4, replace=False))


def test_a_made_graph_equals_the_loop(layout_graph: LayoutGraph) -> None:
    check(layout_graph, np.arange(10))


@pytest.mark.parametrize("seed", range(20))
def test_relabelling_nodes_changes_nothing(seed: int) -> None:
    graph = random_layout_graph(seed, n_nodes=300 if seed % 3 == 0 else None)
    other, _ = relabelled(graph, seed)
    np.testing.assert_allclose(all_statistics(other), all_statistics(graph), rtol=1e-5, atol=1e-6)


@requires_real_data
def test_relabelling_the_nodes_of_real_graphs_changes_nothing() -> None:
    for seed, graph in enumerate(real_layout_graphs(max_bytes=120_000)):
        other, _ = relabelled(graph, seed)
        np.testing.assert_allclose(
            all_statistics(other), all_statistics(graph), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("step", [1, 7, 39])
def test_statistics_of_chunks_are_those_of_the_whole(layout_graph: LayoutGraph, step: int) -> None:
    tables = layout_tables(layout_graph)
    codes = minor_codes(layout_graph.configs.rows(np.arange(layout_graph.n_configs)))
    whole = layout_statistics(tables, codes)
    pieces = [
        layout_statistics(tables, codes[start : start + step])
        for start in range(0, len(codes), step)
    ]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-6, atol=1e-7)
    backwards = layout_statistics(tables, codes[::-1])
    np.testing.assert_allclose(backwards[::-1], whole, rtol=1e-6, atol=1e-7)


@requires_real_data
def test_real_statistics_are_shares_or_logarithms() -> None:
    for graph in real_layout_graphs(max_bytes=120_000):
        statistics = all_statistics(graph)
        assert np.isfinite(statistics).all()
        for column, name in enumerate(LAYOUT_STATISTICS):
            if not name.startswith("log_"):
                assert statistics[:, column].min() >= 0, name
                assert statistics[:, column].max() <= 1 + 1e-5, name


def test_a_graph_without_edges_or_bytes_has_finite_statistics() -> None:
    graph = random_layout_graph(3)
    bare = replace(
        graph,
        edge_index=np.empty((0, 2), np.int64),
        node_feat=np.zeros_like(graph.node_feat),
    )
    statistics = all_statistics(bare)
    assert np.isfinite(statistics).all()
    copies = LAYOUT_STATISTICS.index("copied_bytes_share")
    assert not statistics[:, copies : copies + 3].any()


def test_bytes_of_an_output_are_elements_times_their_size() -> None:
    graph = random_layout_graph(1, n_nodes=60)
    want = [node_bytes(graph, node) for node in range(60)]
    np.testing.assert_allclose(output_bytes(graph.node_feat), want)
    assert max(want) > 0
