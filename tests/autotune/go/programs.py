"""Random programs, and a cost function for their settings."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.go.network import DecisionGraph, decision_graph
from autotune.measure.program import WHOLE_PROGRAM, Description, Knobs
from features.scaling import NodeScaler

Arrays = dict[str, NDArray[Any]]

UNSCALED = NodeScaler("log1p", np.zeros(140, np.float32), np.ones(140, np.float32))


def random_arrays(seed: int, n_nodes: int = 24) -> Arrays:
    """Return a graph. Each node after the first consumes one or two of the previous four nodes."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(1, n_nodes), 2)
    edges = np.stack([users, np.maximum(0, users - rng.integers(1, 5, len(users)))], axis=1)
    return {
        "node_feat": rng.random((n_nodes, 140), dtype=np.float32),
        "node_opcode": rng.integers(0, 6, n_nodes).astype(np.uint8),
        "edge_index": np.unique(edges, axis=0),
    }


def described(
    arrays: Arrays, nodes: list[int], n_options: list[int], spaces: dict[str, int]
) -> Description:
    """Return a description of knobs for some nodes. All knobs are distinct."""
    ends = np.cumsum([*spaces.values()])[:-1]
    columns = np.array(n_options), np.arange(len(nodes)), np.array(nodes)
    by_space = zip(*(np.split(column, ends) for column in columns), strict=True)
    return Description(dict(zip(spaces, map(Knobs._make, by_space), strict=True)), arrays, {})


def two_tasks(name: str, arrays: Arrays) -> DecisionGraph:
    """Every node decides twice between two options."""
    n_nodes = len(arrays["node_opcode"])
    spaces = {"first": n_nodes, "second": n_nodes}
    known = described(arrays, [*range(n_nodes)] * 2, [2] * 2 * n_nodes, spaces)
    return decision_graph(name, known, UNSCALED)


def mixed_tasks(arrays: Arrays) -> DecisionGraph:
    """Some nodes decide between two or three options, then the program and a node, up to four."""
    nodes = [5, 2, 9, 11, WHOLE_PROGRAM, 7, WHOLE_PROGRAM]
    known = described(arrays, nodes, [2, 3, 3, 2, 4, 2, 1], {"first": 4, "second": 3})
    return decision_graph("mixed", known, UNSCALED)


def runtimes(arrays: Arrays, settings: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 plus the share of wrong decisions of each of the two tasks.

    The right first decision of a node is the parity of its opcode. The right second decision is
    the first decision of the operand for the opcodes 0 to 3, and 0 for all other opcodes.

    Args:
        arrays: The program of n nodes.
        settings: (b, 2n) decisions of the first task, then those of the second task.

    Returns:
        (b,) runtimes. The best is 1.
    """
    opcode = arrays["node_opcode"].astype(np.int64)
    first, second = np.split(settings, 2, axis=1)
    user, operand = arrays["edge_index"].T
    best = first[:, operand] * (opcode[user] < 4)
    return 1 + (first != opcode % 2).mean(axis=1) + (second[:, user] != best).mean(axis=1)
