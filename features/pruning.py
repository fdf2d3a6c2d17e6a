"""Reduce a program's graph to the nodes that its configs can change.

Only configurable nodes differ between configs, a few percent of all nodes. Distant nodes are equal
for all configs of a graph and cost memory. The competition's winners needed a quarter of the memory
after they pruned to the neighbourhood of configurable nodes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from common.errors import UsageError
from data.graphs.graph import CONFIGURABLE_SHARE, LayoutGraph
from features.padding import minor_to_major, node_features

Positions = NDArray[np.int64]
# Maps edges (e, 2), n and configurable nodes (k,) to a mask (n,) that includes these nodes.
PruningRule = Callable[[Positions, int, Positions], NDArray[np.bool_]]
Count = TypeVar("Count", float, NDArray[Any])
HOPS_RULE = re.compile(r"hops-([1-9]\d?)")


@dataclass(frozen=True)
class PrunedGraph:
    """The m nodes of a pruned graph, and its f edges."""

    kept: Positions  # (m,) ascending node positions in the whole graph
    edge_index: Positions  # (f, 2) positions in `kept`: [u, v], u consumes the output of v
    config_ids: Positions  # (k,) configurable nodes' positions in `kept`, in config order
    node_feat: NDArray[np.float32]  # (m, 140) stock features
    opcode: NDArray[np.uint8]  # (m,)
    minor_to_major: NDArray[np.int8]  # (m, 6) each node's layout, -1 beyond its rank


def keep_hops(
    edge_index: Positions, n_nodes: int, config_ids: Positions, *, hops: int
) -> NDArray[np.bool_]:
    """Mark the nodes that are at most `hops` edges from a configurable node.

    The rule `hops-k` follows edges in both directions. The rule `config` is `hops` = 0.

    Args:
        edge_index: (e, 2) edges.
        n_nodes: Number of nodes, n.
        config_ids: (k,) positions of the configurable nodes.
        hops: Number of edges, 0 or more.

    Returns:
        (n,) mask of the nodes to keep.
    """
    ones = np.ones(len(edge_index), dtype=np.bool_)
    consumers, producers = edge_index[:, 0], edge_index[:, 1]
    adjacency = sparse.csr_array((ones, (consumers, producers)), shape=(n_nodes, n_nodes))
    adjacency = (adjacency + adjacency.T).tocsr()
    keep = np.zeros(n_nodes, dtype=np.bool_)
    keep[config_ids] = True
    for _ in range(hops):
        neighbourhood = keep | (adjacency @ keep)
        if (neighbourhood == keep).all():
            break
        keep = neighbourhood
    return keep


RULES: dict[str, PruningRule] = {
    "none": lambda edge_index, n_nodes, config_ids: np.ones(n_nodes, dtype=np.bool_),
    "config": partial(keep_hops, hops=0),
}

# The largest ratio of kept nodes to configurable nodes in six layout graphs of the competition.
KEPT_PER_CONFIGURABLE = {"config": 1.0, "hops-1": 3.6, "hops-2": 7.0}


def pruning_rule(name: str) -> PruningRule:
    """Return a pruning rule by its name: a key of RULES, or "hops-k" with k from 1 to 99."""
    if name in RULES:
        return RULES[name]
    match = HOPS_RULE.fullmatch(name)
    if match is None:
        rules = ", ".join([*RULES, "hops-k (k = 1 to 99)"])
        raise UsageError(f"pruning rule '{name}': no such rule; known: {rules}")
    return partial(keep_hops, hops=int(match.group(1)))


def kept_nodes(rule: str, n_nodes: Count) -> Count:
    """Estimate how many nodes a rule keeps of a layout graph, with a bias to too many."""
    share = KEPT_PER_CONFIGURABLE.get(rule)
    return n_nodes if share is None else share * CONFIGURABLE_SHARE * n_nodes


def prune_layout_graph(graph: LayoutGraph, *, rule: str, padding: str = "zero") -> PrunedGraph:
    """Keep the nodes that a rule of `pruning_rule` marks, and all edges between them."""
    edges, config_ids = graph.edge_index, graph.node_config_ids
    keep = pruning_rule(rule)(edges, graph.n_nodes, config_ids)
    kept, place = np.flatnonzero(keep), np.cumsum(keep) - 1
    node_feat = node_features(graph, padding)[kept]
    return PrunedGraph(
        kept=kept,
        edge_index=place[edges[keep[edges].all(axis=1)]],
        config_ids=place[config_ids],
        node_feat=node_feat,
        opcode=graph.node_opcode[kept],
        minor_to_major=minor_to_major(node_feat),
    )
