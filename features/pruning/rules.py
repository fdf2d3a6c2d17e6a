"""Cut a program's graph down to what its configs can change.

Only configurable nodes (a few percent) differ between configs; what is far from them is the same
for all configs of a graph, and costs memory. Pruning to the neighbourhood of configurable nodes
cut memory to a quarter for the competition's winners.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from common.errors import UsageError


@dataclass(frozen=True)
class PrunedGraph:
    """The m nodes of a pruned graph, and its f edges."""

    kept: NDArray[np.int64]  # (m,) ascending node positions in the whole graph
    edge_index: NDArray[np.int64]  # (f, 2) positions in `kept`: [u, v], u consumes the output of v
    config_ids: NDArray[np.int64]  # (k,) configurable nodes' positions in `kept`, in config order


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
    keep = np.zeros(n_nodes, dtype=np.bool_)
    keep[config_ids] = True
    for _ in range(hops):
        grown = keep | (adjacency @ keep)
        if (grown == keep).all():
            break
        keep = grown
    return _subgraph(keep, edge_index, config_ids)


def _subgraph(keep: NDArray[np.bool_], edge_index: Positions, config_ids: Positions) -> PrunedGraph:
    """Keep the nodes marked in (n,) `keep` and all edges between them."""
    kept = np.flatnonzero(keep)
    place = np.cumsum(keep) - 1
    inside = keep[edge_index].all(axis=1)
    return PrunedGraph(kept, place[edge_index[inside]], place[config_ids])


RULES: dict[str, PruningRule] = {
    "none": keep_all,
    "config": partial(keep_hops, hops=0),
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
