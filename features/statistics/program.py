"""Statistics of a program or kernel, equal for all its configs.

They do not order configs within a graph. Trees split on them, for example to separate deep
convolutional networks from wide ones.
"""

from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph
from data.graphs.node_columns import COLUMN_OF, OPCODES, SHAPE_PRODUCT
from features.padding import dimension_sizes
from features.statistics.layout import output_bytes

COUNTED_OPCODES = (
    *("add", "broadcast", "concatenate", "constant", "convert", "convolution", "copy", "dot"),
    *("fusion", "get-tuple-element", "maximum", "multiply", "pad", "parameter", "reduce"),
    *("reduce-window", "reshape", "scatter", "select", "slice", "transpose", "tuple"),
)
PROGRAM_STATISTICS = (
    *("program_log_edges", "program_log_depth", "program_log_width", "program_log_mean_width"),
    *("program_log_bytes", "program_log_parameter_bytes"),
    *("program_log_flops_convolution", "program_log_flops_dot", "program_log_intensity"),
    *(f"program_share_{name}" for name in COUNTED_OPCODES),
)
_WINDOW = COLUMN_OF["window_size_product"]
_FEATURE_DIM = COLUMN_OF["convolution_dim_numbers_input_feature_dim"]
_GROUPS = COLUMN_OF["feature_group_count"]


def program_statistics(graph: Graph) -> NDArray[np.float64]:
    """Compute the statistics in PROGRAM_STATISTICS, (f,)."""
    levels = node_levels(graph.edge_index, graph.n_nodes)
    bytes_of = output_bytes(graph.node_feat)
    opcode = graph.node_opcode
    flops = node_flops(graph)
    logs = [
        np.log1p(len(graph.edge_index)),
        np.log1p(levels.max()),
        np.log(np.bincount(levels).max()),
        np.log(graph.n_nodes / (levels.max() + 1)),
        np.log1p(bytes_of.sum()),
        np.log1p(bytes_of[opcode == OPCODES["parameter"]].sum()),
        np.log1p(flops[opcode == OPCODES["convolution"]].sum()),
        np.log1p(flops[opcode == OPCODES["dot"]].sum()),
        np.log1p(flops.sum()) - np.log1p(bytes_of.sum()),
    ]
    counts = np.bincount(opcode, minlength=256)
    shares = [counts[OPCODES[name]] / graph.n_nodes for name in COUNTED_OPCODES]
    return np.asarray([*logs, *shares])


def node_levels(edge_index: NDArray[np.int64], n_nodes: int) -> NDArray[np.int64]:
    """Return the edges, (n,), on the longest path to each node from a node without operands."""
    order = TopologicalSorter[int](dict.fromkeys(range(n_nodes), ()))
    for consumer, producer in edge_index.tolist():
        order.add(consumer, producer)
    # Nodes in a cycle of a damaged file keep level 0.
    with suppress(CycleError):
        order.prepare()
    levels, level = np.zeros(n_nodes, dtype=np.int64), 0
    while ready := order.get_ready():
        levels[[*ready]] = level
        order.done(*ready)
        level += 1
    return levels


def node_flops(graph: Graph) -> NDArray[np.float64]:
    """Estimate the floating-point operations, (n,), of convolutions and dots, 0 for other nodes.

    The estimate of a dot is 2 · √(A · B · C), for A, B and C elements of operands and output. It is
    exact without batch dimensions, and too large by a factor of √batch with them.
    """
    elements = graph.node_feat[:, SHAPE_PRODUCT].astype(np.float64)
    heavy = np.isin(graph.node_opcode, (OPCODES["convolution"], OPCODES["dot"]))
    edges = graph.edge_index[heavy[graph.edge_index[:, 0]]]
    largest, smallest = np.full(graph.n_nodes, -1), np.full(graph.n_nodes, -1)
    # The last write wins, so the largest operand stays. Ties do not matter: only sizes are read.
    order = np.argsort(elements[edges[:, 1]], kind="stable")
    largest[edges[order, 0]] = edges[order, 1]
    smallest[edges[order[::-1], 0]] = edges[order[::-1], 1]
    flops = np.zeros(graph.n_nodes)
    dots = np.flatnonzero((graph.node_opcode == OPCODES["dot"]) & (largest >= 0))
    product = elements[largest[dots]] * elements[smallest[dots]] * elements[dots]
    flops[dots] = 2 * np.sqrt(product.clip(0))
    convolutions = np.flatnonzero((graph.node_opcode == OPCODES["convolution"]) & (largest >= 0))
    features = graph.node_feat[convolutions]
    dimension = features[:, _FEATURE_DIM].astype(np.int64)
    sizes = dimension_sizes(graph.node_feat[largest[convolutions]])
    depth = np.maximum(sizes[np.arange(len(sizes)), dimension], 1)
    window = np.maximum(features[:, _WINDOW], 1).astype(np.float64)
    groups = np.maximum(features[:, _GROUPS], 1)
    flops[convolutions] = 2 * elements[convolutions] * window * depth / groups
    return flops.clip(0)
