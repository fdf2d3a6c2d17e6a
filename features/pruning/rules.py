"""Cut a program's graph down to what its configs can change.

Only configurable nodes (a few percent) differ between configs; what is far from them is the same
for all configs of a graph, and costs memory. Pruning to the neighbourhood of configurable nodes
cut memory to a quarter for the competition's winners.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from common.errors import UsageError


@dataclass(frozen=True)
class PrunedGraph:
    """The m nodes of a pruned graph.

    Attributes:
        kept: (m,) int64 ascending node positions in the whole graph.
        edge_index: (f, 2) int64 edges of the pruned graph, as positions in `kept`; a row [u, v]
            means that u consumes the output of v.
        config_ids: (k,) int64 configurable nodes as positions in `kept`, in config order.
    """

    kept: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    config_ids: NDArray[np.int64]


# From edges (e, 2), n and the configurable nodes (k,).
PruningRule = Callable[[NDArray[np.int64], int, NDArray[np.int64]], PrunedGraph]


def keep_all(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Rule `none`: keep every node."""
    return _subgraph(np.ones(n_nodes, dtype=np.bool_), edge_index, config_ids)


def keep_configurable(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Rule `config`: keep the configurable nodes alone, with the edges between them."""
    return _subgraph(_configurable(n_nodes, config_ids), edge_index, config_ids)


def keep_hops(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64], *, hops: int
) -> PrunedGraph:
    """Rule `hops-k`: keep nodes up to `hops` edges, of any direction, from a configurable one."""
    ones = np.ones(len(edge_index), dtype=np.bool_)
    consumers, producers = edge_index[:, 0], edge_index[:, 1]
    adjacency = sparse.csr_array((ones, (consumers, producers)), shape=(n_nodes, n_nodes))
    adjacency = (adjacency + adjacency.T).tocsr()
    keep = _configurable(n_nodes, config_ids)
    for _ in range(hops):
        grown = keep | (adjacency @ keep)
        if (grown == keep).all():
            break
        keep = grown
    return _subgraph(keep, edge_index, config_ids)


def connect_configurable(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Rule `config-graph`: keep the configurable nodes alone, with an edge where a path leads
    from one to another past no third.
    """
    alone = keep_configurable(edge_index, n_nodes, config_ids)
    return replace(alone, edge_index=config_graph_edges(edge_index, n_nodes, alone.kept))


def _configurable(n_nodes: int, config_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    is_configurable = np.zeros(n_nodes, dtype=np.bool_)
    is_configurable[config_ids] = True
    return is_configurable


def _subgraph(
    keep: NDArray[np.bool_], edge_index: NDArray[np.int64], config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Keep the nodes marked in (n,) `keep` and all edges between them."""
    kept = np.flatnonzero(keep)
    place = np.cumsum(keep) - 1
    inside = keep[edge_index].all(axis=1)
    return PrunedGraph(kept, place[edge_index[inside]], place[config_ids])


def config_graph_edges(
    edge_index: NDArray[np.int64], n_nodes: int, configurable: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find which configurable nodes (k,) read which, directly or through others only.

    One search per configurable node would visit the whole program thousands of times. Instead each
    node gets a set of configurable nodes, one bit each in a Python integer, and the sets flow from
    producers to consumers: one `|` per edge.

    Returns:
        (f, 2) int64 sorted positions in `configurable`, each pair once, no node with itself: there
        is a path from the first to the second that passes no other configurable node. At worst
        f is near k squared; real programs have 2 to 23 edges per configurable node.
    """
    is_configurable = _configurable(n_nodes, configurable)
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
    """Find the configurable nodes at the ends of each node's paths; no edge may leave one.

    Returns:
        component: (n,) int64 strong component; nodes on a common cycle reach the same.
        reached: for each component, bit i tells whether configurable[i] is in it or is reached.
    """
    ones = np.ones(len(edge_index), dtype=np.bool_)
    adjacency = sparse.csr_array((ones, edge_index.T), shape=(n_nodes, n_nodes))
    _, component = sparse.csgraph.connected_components(adjacency, connection="strong")
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


def _unpack(sets: list[int]) -> NDArray[np.uint8]:
    """Write k sets of bits 0..k-1 as a (k, k) uint8 matrix of 0 and 1."""
    n_bytes = -(-len(sets) // 8)
    packed = b"".join(bits.to_bytes(n_bytes, "little") for bits in sets)
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(sets), n_bytes)
    return np.unpackbits(rows, axis=1, count=len(sets), bitorder="little")


RULES: dict[str, PruningRule] = {
    "none": keep_all,
    "config": keep_configurable,
    "config-graph": connect_configurable,
}
HOPS_RULE = re.compile(r"hops-([1-9]\d?)")


def pruning_rule(name: str) -> PruningRule:
    """Return the rule called `name`: one of RULES, or "hops-k" with k from 1 to 99.

    Raises:
        UsageError: there is no such rule; the known ones are listed.
    """
    if name in RULES:
        return RULES[name]
    match = HOPS_RULE.fullmatch(name)
    if match is None:
        known = ", ".join([*RULES, "hops-k (k = 1, 2, …)"])
        raise UsageError(f"pruning rule '{name}': no such rule; known: {known}")
    return partial(keep_hops, hops=int(match.group(1)))


def prune(
    rule: str, edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Apply a rule, see `pruning_rule`, to edges (e, 2); configurable nodes (k,) are always kept.

    Raises:
        UsageError: there is no such rule.
    """
    return pruning_rule(rule)(edge_index, n_nodes, config_ids)
