"""What models read of the nodes of a pruned graph."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import minor_to_major
from features.pruning.rules import PrunedGraph, prune
from features.pruning.store import read_pruned


@dataclass(frozen=True)
class PrunedNodes:
    """Features of the m nodes of a pruned graph.

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
    node_feat = graph.node_feat[pruned.kept]
    return pruned, PrunedNodes(node_feat, graph.node_opcode[pruned.kept], minor_to_major(node_feat))
