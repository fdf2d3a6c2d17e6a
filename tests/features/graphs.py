"""Small random graphs of legal content, and the same graph with its nodes in another order."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import ELEMENT_BYTES, NODE_FEATURE_NAMES
from data.graphs.packing import pack_values
from data.tree import GraphFile, collection_named
from features.padding import tensor_ranks

CONVOLUTION = [i for i, name in enumerate(NODE_FEATURE_NAMES) if "convolution_dim" in name]
SIZES = (1, 2, 7, 8, 64, 128, 129, 1000)
OPCODES = (26, 34, 75, 63, 2, 11)  # convolution, dot, reshape, parameter, two others


def file_of(kind: str) -> GraphFile:
    name = {"layout": "layout:xla:random", "tile": "tile:xla"}[kind]
    return GraphFile(collection_named(name), "train", "random", Path("random.npz"))


def random_nodes(rng: Generator, n_nodes: int, *, n_shapes: int = 5) -> NDArray[np.float32]:
    """Draw node features: shapes from a few, so that neighbours often share one; some empty."""
    shapes = [rng.choice(SIZES, rank) for rank in rng.integers(0, 7, n_shapes)]
    node_feat = np.zeros((n_nodes, 140), dtype=np.float32)
    for node in range(n_nodes):
        sizes = shapes[rng.integers(n_shapes)]
        node_feat[node, 2 + rng.integers(19)] = 1
        node_feat[node, 21 : 21 + len(sizes)] = sizes
        node_feat[node, 27:29] = sizes.sum(), sizes.prod()
        node_feat[node, 134 : 134 + len(sizes)] = rng.permutation(len(sizes))
        node_feat[node, 40:60] = rng.integers(0, 300, 20)
        node_feat[node, CONVOLUTION] = rng.integers(0, 6, len(CONVOLUTION))
    node_feat[rng.integers(n_nodes), 0] = 1
    return node_feat


def random_edges(rng: Generator, n_nodes: int, n_edges: int) -> NDArray[np.int64]:
    """Draw edges from later to earlier nodes, sorted, none twice."""
    if n_nodes < 2:
        return np.empty((0, 2), dtype=np.int64)
    consumers = rng.integers(1, n_nodes, n_edges)
    edges = np.stack([consumers, rng.integers(0, consumers)], axis=1)
    return np.unique(edges, axis=0).astype(np.int64)


def random_configs(rng: Generator, shape: tuple[int, int]) -> NDArray[np.int8]:
    """Draw layouts, a part of them left to the compiler or naming fewer dimensions; (c, k, 18)."""
    values = np.full((*shape, 3, 6), -1, dtype=np.int8)
    for index in np.ndindex(*shape, 3):
        rank = int(rng.integers(0, 7)) if rng.random() < 0.7 else 0
        values[index][:rank] = rng.permutation(rank)
    return values.reshape(*shape, 18)


def random_layout_graph(seed: int, *, n_nodes: int | None = None) -> LayoutGraph:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40)) if n_nodes is None else n_nodes
    k = int(rng.integers(1, n + 1))
    c = int(rng.integers(1, 12))
    return LayoutGraph(
        file=file_of("layout"),
        node_feat=random_nodes(rng, n),
        node_opcode=rng.choice(OPCODES, n).astype(np.uint8),
        edge_index=random_edges(rng, n, int(rng.integers(0, 3 * n))),
        runtime_ns=rng.integers(1, 1000, c),
        configs=pack_values(random_configs(rng, (c, k))),
        node_config_ids=np.sort(rng.choice(n, k, replace=False)),
        node_splits=np.asarray([[0, n]]),
    )


def tied_layout_graph(seed: int) -> LayoutGraph:
    """Return a random graph whose nodes share three columns of configs."""
    graph, rng = random_layout_graph(seed), np.random.default_rng(seed)
    column_of = rng.integers(0, 3, len(graph.node_config_ids))
    values = random_configs(rng, (graph.n_configs, 3))[:, column_of]
    return replace(graph, configs=pack_values(values))


def random_tile_graph(seed: int) -> TileGraph:
    rng = np.random.default_rng(seed)
    n, c = int(rng.integers(1, 12)), int(rng.integers(1, 20))
    bounds = rng.choice((0, 1, 2, 8, 100, 128, 2000), (c, 24)).astype(np.float32)
    return TileGraph(
        file=file_of("tile"),
        node_feat=random_nodes(rng, n),
        node_opcode=rng.choice(OPCODES, n).astype(np.uint8),
        edge_index=random_edges(rng, n, 2 * n),
        runtime_ns=rng.integers(1, 1000, c),
        config_feat=bounds,
        runtime_normalizers=rng.integers(1, 1000, c),
    )


def check_by_name(names: Iterable[str], row: NDArray[Any], want: Mapping[str, float]) -> None:
    """Compare a row of statistics with the values of a slow reference."""
    for name, value in zip(names, row.tolist(), strict=True):
        assert value == pytest.approx(want[name], rel=2e-5, abs=2e-5), name


def node_bytes(graph: Graph, node: int) -> float:
    features = graph.node_feat[node]
    kind = next(i for i in range(19) if features[2 + i])
    return float(ELEMENT_BYTES[kind]) * float(features[28])


def sizes_of(graph: Graph, node: int) -> list[int]:
    rank = int(tensor_ranks(graph.node_feat[[node]])[0])
    return graph.node_feat[node, 21 : 21 + rank].astype(int).tolist()
