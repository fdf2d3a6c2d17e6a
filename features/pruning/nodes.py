"""What models read of the nodes of a pruned graph."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import UNKNOWN_OPCODE
from data.graphs.node_layouts import minor_to_major
from features.pruning.rules import PrunedGraph, prune
from features.pruning.store import read_pruned


@dataclass(frozen=True)
class PrunedNodes:
    """Features of the m nodes of a pruned graph.

    A node that stands for several has the mean of their stock features: the mean size, the share
    that has a flag. Opcode and layout cannot be averaged: it has theirs where they all agree, else
    the unknown opcode and no layout.

    Attributes:
        node_feat: (m, 140) float32 stock features.
        opcode: (m,) uint8.
        minor_to_major: (m, 6) int8 each node's layout, -1 beyond its rank.
    """

    node_feat: NDArray[np.float32]
    opcode: NDArray[np.uint8]
    minor_to_major: NDArray[np.int8]


def prune_layout_graph(graph: LayoutGraph, *, rule: str) -> tuple[PrunedGraph, PrunedNodes]:
    """Prune a graph by the rule called `rule`, see features.pruning.rules, and gather its nodes.

    What `prepare --prune` left in the store is read from there.
    """
    pruned = read_pruned(graph, rule)
    if pruned is None:
        pruned = prune(rule, graph.edge_index, graph.n_nodes, graph.node_config_ids)
    return pruned, pruned_nodes(graph, pruned)


def pruned_nodes(graph: LayoutGraph, pruned: PrunedGraph) -> PrunedNodes:
    """Gather the features of the nodes of a pruned graph."""
    node_feat = graph.node_feat[pruned.kept]
    opcode = graph.node_opcode[pruned.kept]
    layout = minor_to_major(node_feat)
    members = np.flatnonzero(pruned.group >= 0)
    if len(members) == len(pruned.kept):
        return PrunedNodes(node_feat, opcode, layout)
    group = pruned.group[members]
    member_feat = graph.node_feat[members]
    other_opcode = graph.node_opcode[members] != opcode[group]
    opcode[group[other_opcode]] = UNKNOWN_OPCODE
    other_layout = (minor_to_major(member_feat) != layout[group]).any(axis=1)
    layout[group[other_layout]] = -1
    return PrunedNodes(_means(member_feat, group, len(pruned.kept)), opcode, layout)


def _means(
    member_feat: NDArray[np.float32], group: NDArray[np.int64], n_groups: int
) -> NDArray[np.float32]:
    """Average the rows (a, 140) of each group; (m, 140) float32, exact for a group of one."""
    ones = np.ones(len(group))
    shape = (n_groups, len(group))
    sums = sparse.csr_array((ones, (group, np.arange(len(group)))), shape=shape) @ member_feat
    sizes = np.bincount(group, minlength=n_groups)
    return (sums / sizes[:, None]).astype(np.float32)
