"""Which configurable node reaches which, against plain searches over dictionaries."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from features.statistics.layout_paths import MAX_VISITED, SourceEdges, layout_sources
from tests.features.graphs import file_of, random_layout_graph, relabelled
from tests.real_data import real_layout_graphs, requires_real_data

Pair = tuple[int, int]


def shape_of(graph: LayoutGraph, node: int) -> tuple[float, ...]:
    """The shape as stored; the layout tells ranks of empty and of padded dimensions apart."""
    return (*graph.node_feat[node, 21:27].tolist(), graph.node_feat[node, 134:140].max())


def operands_of(graph: LayoutGraph) -> dict[int, list[int]]:
    operands: dict[int, list[int]] = {node: [] for node in range(graph.n_nodes)}
    for consumer, producer in graph.edge_index.tolist():
        operands[consumer].append(producer)
    return operands


def slow_pairs(graph: LayoutGraph, at_most: int) -> list[Pair]:
    """Node pairs (consumer, producer): from each operand go back step by step while the shape
    stays, stop at configurable nodes, and go no further once `at_most` nodes were seen.
    """
    operands = operands_of(graph)
    configurable = set(graph.node_config_ids.tolist())
    shape = [shape_of(graph, node) for node in range(graph.n_nodes)]
    pairs = []
    for consumer in configurable:
        for operand in operands[consumer]:
            distance = {operand: 0}
            step = 0
            while step in distance.values():
                here = [node for node, far in distance.items() if far == step]
                pairs += [(consumer, node) for node in here if node in configurable]
                step += 1
                if len(distance) > at_most:
                    break
                for node in here:
                    if node in configurable:
                        continue
                    for other in operands[node]:
                        if shape[other] == shape[node]:
                            distance.setdefault(other, step)
    return sorted(pairs)


def pairs_of(graph: LayoutGraph, sources: SourceEdges) -> list[Pair]:
    ids = graph.node_config_ids
    nodes = zip(ids[sources.consumer].tolist(), ids[sources.producer].tolist(), strict=True)
    return sorted(nodes)


def check(graph: LayoutGraph) -> int:
    bytes_of = np.arange(1.0, graph.n_nodes + 1)
    sources = layout_sources(graph, bytes_of)
    assert pairs_of(graph, sources) == slow_pairs(graph, MAX_VISITED)
    weights = bytes_of[graph.node_config_ids[sources.producer]]
    if len(weights):
        np.testing.assert_allclose(sources.bytes_share, weights / weights.sum(), rtol=1e-6)
    return len(weights)


def test_random_graphs_equal_the_slow_search() -> None:
    assert sum(check(random_layout_graph(seed)) > 3 for seed in range(60)) > 20


@pytest.mark.parametrize("seed", range(8))
def test_larger_random_graphs_equal_the_slow_search(seed: int) -> None:
    """Large enough for the walk to be cut short."""
    graph = random_layout_graph(seed, n_nodes=400)
    few = replace(graph, node_config_ids=graph.node_config_ids[:5])
    one_shape = replace(few, node_feat=np.repeat(graph.node_feat[:1], 400, axis=0))
    check(few)
    check(one_shape)


@requires_real_data
def test_real_graphs_equal_the_slow_search() -> None:
    for graph in real_layout_graphs(max_bytes=120_000):
        assert check(graph) > 0


@pytest.mark.parametrize("seed", range(20))
def test_another_order_of_nodes_and_edges_gives_the_same_pairs(seed: int) -> None:
    graph = random_layout_graph(seed, n_nodes=300 if seed % 2 else 30)
    if seed % 4 == 1:
        graph = replace(graph, node_feat=np.repeat(graph.node_feat[:1], 300, axis=0))
    other, order = relabelled(graph, seed)
    one = layout_sources(graph, np.ones(graph.n_nodes))
    two = layout_sources(other, np.ones(graph.n_nodes))
    assert sorted(zip(one.consumer.tolist(), one.producer.tolist(), strict=True)) == sorted(
        zip(order[two.consumer].tolist(), order[two.producer].tolist(), strict=True)
    )


def chain(length: int, *, configurable: list[int], sizes: NDArray[np.float32]) -> LayoutGraph:
    """Node 0 ← 1 ← … ← length - 1, each of one dimension."""
    graph = random_layout_graph(0, n_nodes=length)
    node_feat = np.zeros((length, 140), dtype=np.float32)
    node_feat[:, 21] = sizes
    edges = np.stack([np.arange(1, length), np.arange(length - 1)], axis=1)
    return replace(
        graph,
        file=file_of("layout"),
        node_feat=node_feat,
        edge_index=edges,
        node_config_ids=np.asarray(configurable),
    )


@pytest.mark.parametrize(
    ("length", "is_found"), [(2, True), (10, True), (MAX_VISITED + 2, True), (200, False)]
)
def test_a_chain_is_walked_back_so_far_and_no_further(length: int, is_found: bool) -> None:
    graph = chain(length, configurable=[0, length - 1], sizes=np.full(length, 4, np.float32))
    found = pairs_of(graph, layout_sources(graph, np.ones(length)))
    assert found == ([(length - 1, 0)] if is_found else [])


def test_a_change_of_shape_and_another_configurable_node_end_the_walk() -> None:
    sizes = np.full(9, 4, np.float32)
    sizes[:3] = 5  # from node 2 to node 3 the shape changes
    graph = chain(9, configurable=[8, 6, 4, 2], sizes=sizes)
    assert pairs_of(graph, layout_sources(graph, np.ones(9))) == [(6, 4), (8, 6)]


def test_without_edges_or_bytes_there_is_nothing_and_no_division_by_zero() -> None:
    graph = replace(
        chain(4, configurable=[3, 1], sizes=np.ones(4, np.float32)),
        edge_index=np.empty((0, 2), np.int64),
    )
    sources = layout_sources(graph, np.zeros(4))
    assert sources.consumer.shape == sources.producer.shape == sources.bytes_share.shape == (0,)
    joined = chain(4, configurable=[3, 1], sizes=np.ones(4, np.float32))
    assert layout_sources(joined, np.zeros(4)).bytes_share.tolist() == [0.0]
