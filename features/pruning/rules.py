"""Cut a program's graph down to what its configs can change.

Only configurable nodes (a few percent) differ between configs; what is far from them is the same
for all configs of a graph, and costs memory. Pruning to the neighbourhood of configurable nodes
cut memory to a quarter for the competition's winners.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

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


Positions = NDArray[np.int64]
# From edges (e, 2), n and the configurable nodes (k,), which are always kept.
PruningRule = Callable[[Positions, int, Positions], PrunedGraph]


def keep_all(edge_index: Positions, n_nodes: int, config_ids: Positions) -> PrunedGraph:
    return _subgraph(np.ones(n_nodes, dtype=np.bool_), edge_index, config_ids)


def keep_hops(
    edge_index: Positions, n_nodes: int, config_ids: Positions, *, hops: int
) -> PrunedGraph:
    """Rule `hops-k`: keep nodes up to `hops` edges, of any direction, from a configurable one.

    With 0, rule `config`: configurable nodes alone, with the edges between them.
    """
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


def connect_configurable(edge_index: Positions, n_nodes: int, config_ids: Positions) -> PrunedGraph:
    """Rule `config-graph`: keep the configurable nodes alone, with an edge where a path leads
    from one to another past no third.

    At worst there are nearly k squared edges; real programs have 2 to 23 per configurable node.
    """
    alone = keep_hops(edge_index, n_nodes, config_ids, hops=0)
    is_end = _configurable(n_nodes, config_ids)
    # Paths start at a twin of a configurable node, from which alone edges lead on.
    twin = n_nodes + np.cumsum(is_end) - 1
    consumers, producers = edge_index.T
    starts = np.where(is_end[consumers], twin[consumers], consumers)
    size = n_nodes + len(config_ids)
    ones = np.ones(len(edge_index), dtype=np.float64)
    paths = sparse.csr_array((ones, (starts, producers)), shape=(size, size))
    edges = []
    for node in range(len(config_ids)):
        reached = breadth_first_order(paths, n_nodes + node, return_predecessors=False)[1:]
        others = np.sort(twin[reached[is_end[reached]]]) - n_nodes
        edges += [(node, other) for other in others.tolist() if other != node]
    return replace(alone, edge_index=np.array(edges, dtype=np.int64).reshape(-1, 2))


def _configurable(n_nodes: int, config_ids: Positions) -> NDArray[np.bool_]:
    is_configurable = np.zeros(n_nodes, dtype=np.bool_)
    is_configurable[config_ids] = True
    return is_configurable


def _subgraph(keep: NDArray[np.bool_], edge_index: Positions, config_ids: Positions) -> PrunedGraph:
    """Keep the nodes marked in (n,) `keep` and all edges between them."""
    kept = np.flatnonzero(keep)
    place = np.cumsum(keep) - 1
    inside = keep[edge_index].all(axis=1)
    return PrunedGraph(kept, place[edge_index[inside]], place[config_ids])


RULES: dict[str, PruningRule] = {
    "none": keep_all,
    "config": partial(keep_hops, hops=0),
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
        known = ", ".join([*RULES, "hops-k (k = 1 to 99)"])
        raise UsageError(f"pruning rule '{name}': no such rule; known: {known}")
    return partial(keep_hops, hops=int(match.group(1)))
