"""Layouts and dimension lists of nodes without the dataset's padding.

The dataset pads `layout_minor_to_major` with 0, which is also the number of a dimension. The rank
follows from the largest entry, because an order is a permutation of 0..rank-1. If the largest entry
is 0, the tensor has rank 1 if it has a dimension, else rank 0.

The competition's winners featurized the protobufs again, with -1 after every list of dimension
numbers (the function FixedNumericSequenceFeaturesNoAggregate of the dataset's featurizers.h). Such
lists are the layout, `dimensions` and the spatial dimensions of a convolution.

Shapes: n nodes. `node_feat` has the (n, 140) float32 stock features of nodes.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph
from data.graphs.node_columns import (
    COLUMN_OF,
    MINOR_TO_MAJOR,
    OPCODES,
    RANK_MAX,
    SHAPE_DIMENSIONS,
)
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR

_DIMENSIONS = slice(COLUMN_OF["dimensions_0"], COLUMN_OF["dimensions_0"] + RANK_MAX)
_SPATIAL_STARTS = tuple(
    COLUMN_OF[f"convolution_dim_numbers_{tensor}_spatial_dims_0"] for tensor in ("input", "kernel")
)
_SPATIAL_MAX = 4
# Operations with one dimension number, and with one for each dimension of the output.
_ONE_DIMENSION = [
    OPCODES[name]
    for name in (
        *("concatenate", "iota", "sort", "reverse", "all-gather", "all-to-all", "reduce-scatter"),
        *("get-dimension-size", "set-dimension-size"),
    )
]
_OUTPUT_RANK = [OPCODES["transpose"], OPCODES["map"]]


def node_features(graph: Graph, padding: str) -> NDArray[np.float32]:
    """Return the stock features, with the chosen padding of the 14 columns of dimension lists.

    The columns are `dimensions_0` to `dimensions_5` and the spatial dimensions of the input and the
    kernel of a convolution. Layouts are not changed.

    Args:
        graph: Whole graph. The lengths of lists depend on the operands of a node.
        padding: "zero" or "minus_one".

    Returns:
        (n, 140) float32.
    """
    if padding == "zero":
        return graph.node_feat
    node_feat, ranks = graph.node_feat.copy(), tensor_ranks(graph.node_feat)
    spatial = np.where(graph.node_opcode == OPCODES["convolution"], ranks - 2, 0)
    lists = [(slice(start, start + _SPATIAL_MAX), spatial) for start in _SPATIAL_STARTS]
    for columns, lengths in (*lists, (_DIMENSIONS, _dimension_counts(graph, ranks))):
        values = node_feat[:, columns]
        is_after = np.arange(values.shape[1]) >= lengths[:, None]
        # No number is lost if a list is longer than its operation explains.
        is_after &= np.maximum.accumulate(values[:, ::-1] > 0, axis=1)[:, ::-1] == 0
        values[is_after] = -1
    return node_feat


def _dimension_counts(graph: Graph, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    # (n,) lengths of `dimensions`, by the meaning of each operation.
    opcode, operand_ranks = graph.node_opcode, np.zeros_like(ranks)
    consumer, producer = graph.edge_index.T
    np.maximum.at(operand_ranks, consumer, ranks[producer])
    counts = np.where(np.isin(opcode, _ONE_DIMENSION), 1, 0)
    counts = np.where(np.isin(opcode, _OUTPUT_RANK), ranks, counts)
    counts = np.where(opcode == OPCODES["broadcast"], operand_ranks, counts)
    # A reduction to a tuple has the rank of the elements that its consumers take.
    of_elements = np.zeros_like(ranks)
    is_element = opcode[consumer] == OPCODES["get-tuple-element"]
    np.maximum.at(of_elements, producer[is_element], ranks[consumer[is_element]])
    n_reduced = operand_ranks - np.maximum(ranks, of_elements)
    return np.where(opcode == OPCODES["reduce"], n_reduced, counts)


def tensor_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rank of each node's output, (n,) int64, 0 if it has no dimension."""
    largest = node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    has_dimension = node_feat[:, SHAPE_DIMENSIONS.start] > 0
    return np.where(largest > 0, largest + 1, has_dimension).astype(np.int64)


def minor_to_major(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the layout of each node's output, minor dimension first.

    Returns:
        (n, 6) int8 dimension numbers, -1 beyond the rank.
    """
    order = node_feat[:, MINOR_TO_MAJOR].astype(np.int8)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int8(-1), order)


def dimension_sizes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sizes of each node's output dimensions.

    Returns:
        (n, 6) int64 sizes, -1 beyond the rank. An empty tensor has a legal size of 0.
    """
    # `audit` notes a larger size, which int64 cannot hold.
    sizes = node_feat[:, SHAPE_DIMENSIONS].clip(-(2**62), 2**62).astype(np.int64)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int64(-1), sizes)


def layout_symbols(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """Map layout values -1..5 of any shape to rows 0..6 of an embedding, int64."""
    return values.astype(np.int64) + 1


def minor_codes(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Pack the two minor dimensions of each layout into one number.

    The two minor dimensions decide how the TPU cuts a tensor into 8 x 128 tiles. Many configs name
    no further dimension.

    Args:
        values: (…, 6·t) int8 layout values -1..5 of t tensors.

    Returns:
        (…, t) int8 codes 0..48, 0 if no dimension is named.
    """
    first = values[..., 0::VALUES_PER_TENSOR]
    second = values[..., 1::VALUES_PER_TENSOR]
    return (first + 1) * np.int8(N_SYMBOLS) + second + 1
