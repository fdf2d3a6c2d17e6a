"""Which configurable node's output reaches which configurable node with its shape unchanged.

A layout chosen for a convolution's output travels through elementwise operations until another
operation asks for a layout of its own; where the two differ the compiler inserts a copy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import dimension_sizes

# Programs hold long chains of elementwise operations of one shape; the walk back from one operand
# takes no further step once it has seen this many nodes, which keeps its cost linear in
# configurable nodes. Steps are taken whole, so that the order of nodes and edges does not matter.
MAX_VISITED = 64


@dataclass(frozen=True)
class SourceEdges:
    """p pairs of configurable nodes, as positions in config order.

    Attributes:
        consumer: (p,) int64.
        producer: (p,) int64.
        bytes_share: (p,) float32 bytes of the producer's output, as a share of all pairs.
    """

    consumer: NDArray[np.int64]
    producer: NDArray[np.int64]
    bytes_share: NDArray[np.float32]


def layout_sources(graph: LayoutGraph, bytes_of: NDArray[np.float64]) -> SourceEdges:
    """Walk back from each configurable node through nodes of unchanged shape.

    Args:
        graph: the whole graph.
        bytes_of: (n,) bytes of each node's output.
    """
    producers = _producers(graph.edge_index, graph.n_nodes)
    shapes = [tuple(row) for row in dimension_sizes(graph.node_feat)]
    position = {int(node): i for i, node in enumerate(graph.node_config_ids)}
    pairs = [
        (consumer, source)
        for node, consumer in position.items()
        for operand in producers[node]
        for source in sorted(_sources(operand, producers, shapes, position))
    ]
    pair_array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    weights = bytes_of[graph.node_config_ids][pair_array[:, 1]]
    share = weights / max(float(weights.sum()), 1.0)
    return SourceEdges(pair_array[:, 0], pair_array[:, 1], share.astype(np.float32))


def _producers(edge_index: NDArray[np.int64], n_nodes: int) -> list[list[int]]:
    """List the operands of each node."""
    producers: list[list[int]] = [[] for _ in range(n_nodes)]
    for consumer, producer in edge_index.tolist():
        producers[consumer].append(producer)
    return producers


def _sources(
    start: int,
    producers: list[list[int]],
    shapes: list[tuple[int, ...]],
    position: dict[int, int],
) -> set[int]:
    """Return which configurable nodes' outputs reach `start` with their shape unchanged."""
    found: set[int] = set()
    seen = {start}
    reached = [start]
    while reached:
        found.update(position[node] for node in reached if node in position)
        if len(seen) > MAX_VISITED:
            break
        passing = [node for node in reached if node not in position]
        step = {
            operand
            for node in passing
            for operand in producers[node]
            if shapes[operand] == shapes[node]
        }
        reached = sorted(step - seen)
        seen |= step
    return found
