"""Cut a program's graph down to what its configs can change.

Only configurable nodes (a few percent) differ between configs; what is far from them is the same
for all configs of a graph, and costs memory. Pruning to the neighbourhood of configurable nodes
cut memory to a quarter for the competition's winners.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from data.errors import UsageError


@dataclass(frozen=True)
class PrunedGraph:
    """The kept part of a graph, and how it maps back.

    Attributes:
        kept: (m,) int64 ascending node positions in the whole graph.
        edge_index: (f, 2) int64 edges between kept nodes, as positions in `kept`.
        config_ids: (k,) int64 configurable nodes as positions in `kept`, in config order.
    """

    kept: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    config_ids: NDArray[np.int64]


KeepRule = Callable[[NDArray[np.int64], int, NDArray[np.int64]], NDArray[np.bool_]]


def keep_all(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Rule `none`: keep every node. Returns (n,) bool."""
    return np.ones(n_nodes, dtype=np.bool_)


def keep_hops(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64], hops: int
) -> NDArray[np.bool_]:
    """Rule `hops-k`: keep nodes at most `hops` edges, of either direction, from a configurable one.

    Args:
        edge_index: (e, 2) int64.
        n_nodes: n.
        config_ids: (k,) int64 configurable nodes.
        hops: 0 keeps the configurable nodes alone.

    Returns:
        (n,) bool.
    """
    ones = np.ones(len(edge_index), dtype=np.bool_)
    consumers, producers = edge_index[:, 0], edge_index[:, 1]
    adjacency = sparse.csr_array((ones, (consumers, producers)), shape=(n_nodes, n_nodes))
    adjacency = (adjacency + adjacency.T).tocsr()
    keep = np.zeros(n_nodes, dtype=np.bool_)
    keep[config_ids] = True
    for _ in range(hops):
        grown = keep | (adjacency @ keep)
        if (grown == keep).all():
            break
        keep = grown
    return keep


def keep_configurable(
    edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Rule `config`: keep the configurable nodes alone. Returns (n,) bool."""
    return keep_hops(edge_index, n_nodes, config_ids, 0)


RULES: dict[str, KeepRule] = {"none": keep_all, "config": keep_configurable}
HOPS_RULE = re.compile(r"hops-([1-9]\d?)")


def pruning_rule(name: str) -> KeepRule:
    """Return the rule called `name`: "none", "config", or "hops-k" with k from 1 to 99.

    Raises:
        UsageError: there is no such rule; the known ones are listed.
    """
    if name in RULES:
        return RULES[name]
    match = HOPS_RULE.fullmatch(name)
    if match is None:
        known = ", ".join([*RULES, "hops-k (k = 1, 2, …)"])
        raise UsageError(f"pruning rule '{name}': no such rule; known: {known}")
    hops = int(match.group(1))
    return lambda edges, n_nodes, config_ids: keep_hops(edges, n_nodes, config_ids, hops)


def prune(
    rule: str, edge_index: NDArray[np.int64], n_nodes: int, config_ids: NDArray[np.int64]
) -> PrunedGraph:
    """Apply the rule called `rule`; configurable nodes are always kept.

    Args:
        rule: see `pruning_rule`.
        edge_index: (e, 2) int64.
        n_nodes: n.
        config_ids: (k,) int64.

    Raises:
        UsageError: there is no such rule.
    """
    keep = pruning_rule(rule)(edge_index, n_nodes, config_ids)
    kept = np.flatnonzero(keep)
    position = np.full(n_nodes, -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    inside = keep[edge_index].all(axis=1)
    return PrunedGraph(kept, position[edge_index[inside]], position[config_ids])
