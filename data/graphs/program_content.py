"""Recognise a program by what it holds, whatever its file is called and its nodes' order is."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from data.graphs.configs import hash_rows
from data.graphs.graph import LayoutGraph

ROUNDS = 2  # of telling each node what its neighbours are


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
