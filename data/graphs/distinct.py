"""What is equal by content: configs of a graph, many of which are measured twice, and programs."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph, LayoutGraph, TileGraph

ROUNDS = 2  # of telling each node of a program what its neighbours are


def hash_rows(table: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Hash each row of `table` (c, …) by its bytes; (c,) uint64.

    BLAKE2b shortened to 64 bits: for 100,000 configs a collision has a chance of 3e-10.
    """
    contiguous = np.ascontiguousarray(table)
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in contiguous)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def distinct_rows(
    hashes: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs.

    Args:
        hashes: (c,) uint64 content hashes.

    Returns:
        first: (u,) int64, the first row of each distinct config, ascending.
        group: (c,) int64, which distinct config each row is: hashes[first[group]] == hashes.
    """
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order].astype(np.int64), rank[group].astype(np.int64)


def config_hashes(graph: Graph) -> NDArray[np.uint64]:
    """Return (c,) uint64 content hashes of a graph's configs, equal on every machine."""
    if isinstance(graph, TileGraph):
        return hash_rows(graph.config_feat + np.float32(0))  # -0 becomes 0, its equal
    assert isinstance(graph, LayoutGraph)
    return graph.configs.content_hashes()


def distinct_configs(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs of a graph as `distinct_rows` does."""
    return distinct_rows(config_hashes(graph))


def graph_content(graph: Graph, hashes: NDArray[np.uint64]) -> str:
    """Return 16 hex digits: equal for graphs of equal nodes, edges and configs in any order.

    Args:
        graph: Graph whose runtimes decide nothing.
        hashes: Its `config_hashes` (c,), uint64.
    """
    parts = [graph.node_opcode, graph.node_feat + np.float32(0), graph.edge_index, np.sort(hashes)]
    parts += [graph.node_config_ids] if isinstance(graph, LayoutGraph) else []
    content = b"".join(part.tobytes() for part in parts)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sample_rows(graph: Graph, at_most: int) -> NDArray[np.int64]:
    """Draw measurements of a graph's configs by their content, in whatever order a file holds them.

    Every row has the same chance: those of one config are numbered by runtime, and the rows whose
    content and number hash lowest are drawn.

    Returns:
        (min(c, at_most),) int64 rows, ascending.
    """
    if graph.n_configs <= at_most:
        return np.arange(graph.n_configs)
    hashes = config_hashes(graph)
    order = np.lexsort((graph.runtime_ns, hashes))
    _, start, group = np.unique(hashes[order], return_index=True, return_inverse=True)
    number = (np.arange(len(order)) - start[group]).astype(np.uint64)
    drawn = np.argsort(hash_rows(np.stack([hashes[order], number], axis=1)))[:at_most]
    return np.sort(order[drawn])


def group_means(values: NDArray[Any], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average `values` (c,) within each group; (u,) float64."""
    return np.bincount(group, weights=values.astype(np.float64)) / np.bincount(group)


def program_content(graph: LayoutGraph) -> str:
    """Return 16 hex digits: equal for equal programs, configs and runtimes left aside.

    Each node is a number of its own features and, where it is configurable, its place in config
    order; twice it takes in the numbers of its operands and its readers. The sum over nodes does
    not depend on their order. Programs that this cannot tell apart differ beyond two edges around
    every node while their nodes are the same one by one.
    """
    place = np.full(graph.n_nodes, -1, dtype=np.int64)
    place[graph.node_config_ids] = np.arange(len(graph.node_config_ids))
    own = (graph.node_feat + np.float32(0), graph.node_opcode[:, None], place[:, None])
    numbers = hash_rows(np.concatenate([_as_bytes(part) for part in own], axis=1))
    consumer, producer = graph.edge_index.T
    for _ in range(ROUNDS):
        operands, readers = np.zeros_like(numbers), np.zeros_like(numbers)
        np.add.at(operands, consumer, numbers[producer])
        np.add.at(readers, producer, numbers[consumer])
        numbers = hash_rows(np.stack([numbers, operands, readers], axis=1))
    total = numbers.sum(dtype=np.uint64)
    return hashlib.blake2b(int(total).to_bytes(8, "little"), digest_size=8).hexdigest()


def _as_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
