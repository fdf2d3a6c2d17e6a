"""Edges of the graph of configurable nodes alone: who reads whom, through whatever lies between.

One search per configurable node would visit the whole program thousands of times. Instead each
node gets a set of configurable nodes, one bit each in a Python integer, and the sets flow from
producers to consumers: one `|` per edge of the program.
"""

from collections import defaultdict
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


def config_graph_edges(
    edge_index: NDArray[np.int64], n_nodes: int, configurable: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find which configurable nodes read which, directly or through others only.

    Nodes may come in any order, and cycles may occur.

    Args:
        edge_index: (e, 2) int64; a row [u, v] means that u consumes the output of v.
        n_nodes: n.
        configurable: (k,) int64 distinct nodes.

    Returns:
        (f, 2) int64 sorted positions in `configurable`, each pair once, no node with itself: there
        is a path from the first to the second that passes no other configurable node. At worst
        f is near k squared; real programs have 2 to 23 edges per configurable node.
    """
    is_configurable = np.zeros(n_nodes, dtype=np.bool_)
    is_configurable[configurable] = True
    # Without the edges that leave them, configurable nodes are where each path ends.
    leaves = is_configurable[edge_index[:, 0]]
    component, reached = _reached_sets(edge_index[~leaves], n_nodes, configurable)
    reads = dict.fromkeys(configurable.tolist(), 0)
    for consumer, producer in edge_index[leaves].tolist():
        reads[consumer] |= reached[component[producer]]
    related = _unpack(list(reads.values()))
    np.fill_diagonal(related, 0)
    return np.argwhere(related).astype(np.int64, copy=False)


def _reached_sets(
    edge_index: NDArray[np.int64], n_nodes: int, configurable: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[int]]:
    """Find the configurable nodes at the ends of each node's paths.

    Args:
        edge_index: (e, 2) int64 without edges that leave a configurable node.
        n_nodes: n.
        configurable: (k,) int64.

    Returns:
        component: (n,) int64 strong component; nodes on a common cycle reach the same.
        reached: for each component, bit i tells whether configurable[i] is in it or is reached.
    """
    component = components(edge_index, n_nodes, connection="strong")
    producers = defaultdict(set)
    for consumer, producer in component[edge_index].tolist():
        if consumer != producer:
            producers[consumer].add(producer)
    reached = [0] * n_nodes
    for i, end in enumerate(component[configurable].tolist()):
        reached[end] = 1 << i
    # Components form no cycle; the sorter gives each one after those it reads.
    for consumer in TopologicalSorter(producers).static_order():
        for producer in producers.get(consumer, ()):
            reached[consumer] |= reached[producer]
    return component, reached


def components(
    edge_index: NDArray[np.int64], n_nodes: int, *, connection: str
) -> NDArray[np.int64]:
    """Number the connected components ("weak" or "strong") of (e, 2) edges; (n,) int64."""
    ones = np.ones(len(edge_index), dtype=np.bool_)
    adjacency = sparse.csr_array((ones, edge_index.T), shape=(n_nodes, n_nodes))
    _, label = sparse.csgraph.connected_components(adjacency, connection=connection)
    return label.astype(np.int64)


def _unpack(sets: list[int]) -> NDArray[np.uint8]:
    """Write k sets of bits 0..k-1 as a (k, k) uint8 matrix of 0 and 1."""
    n_bytes = -(-len(sets) // 8)
    packed = b"".join(bits.to_bytes(n_bytes, "little") for bits in sets)
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(sets), n_bytes)
    return np.unpackbits(rows, axis=1, count=len(sets), bitorder="little")
