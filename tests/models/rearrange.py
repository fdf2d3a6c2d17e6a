"""The same graph written differently: nodes renumbered, or configs in another order."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.graphs.packing import pack_values

AnyGraph = TypeVar("AnyGraph", bound=Graph)


def relabel_nodes(graph: AnyGraph, order: NDArray[np.int64]) -> AnyGraph:
    """Return the graph with node order[i] at position i; order (n,) is a permutation."""
    position = np.argsort(order)
    changes = {
        "node_feat": graph.node_feat[order],
        "node_opcode": graph.node_opcode[order],
        "edge_index": position[graph.edge_index][::-1].copy(),
    }
    if isinstance(graph, LayoutGraph):
        changes["node_config_ids"] = position[graph.node_config_ids]
    return replace(graph, **changes)


def permute_configs(graph: AnyGraph, order: NDArray[np.int64]) -> AnyGraph:
    """Return the graph with config order[i] at row i; order (c,) is a permutation."""
    changes = {"runtime_ns": graph.runtime_ns[order]}
    if isinstance(graph, LayoutGraph):
        changes["configs"] = pack_values(graph.configs.rows(order))
    if isinstance(graph, TileGraph):
        changes["config_feat"] = graph.config_feat[order]
        changes["runtime_normalizers"] = graph.runtime_normalizers[order]
    return replace(graph, **changes)
