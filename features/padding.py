"""Layouts and dimensions of nodes without the dataset's padding.

The dataset pads `layout_minor_to_major` with 0, which is also the number of a dimension. The rank
follows from the largest entry, because an order is a permutation of 0..rank-1. If the largest entry
is 0, the tensor has rank 1 if it has a dimension, else rank 0.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import MINOR_TO_MAJOR, RANK_MAX, SHAPE_DIMENSIONS
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR


def tensor_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rank of each node's output, 0 if it has no dimension.

    Args:
        node_feat: (n, 140) stock features of the nodes.

    Returns:
        (n,) int64 ranks.
    """
    largest = node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    has_dimension = node_feat[:, SHAPE_DIMENSIONS.start] > 0
    return np.where(largest > 0, largest + 1, has_dimension).astype(np.int64)


def minor_to_major(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the layout of each node's output, minor dimension first.

    Args:
        node_feat: (n, 140) stock features of the nodes.

    Returns:
        (n, 6) int8 dimension numbers, -1 beyond the rank.
    """
    order = node_feat[:, MINOR_TO_MAJOR].astype(np.int8)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int8(-1), order)


def dimension_sizes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sizes of each node's output dimensions.

    Args:
        node_feat: (n, 140) stock features of the nodes.

    Returns:
        (n, 6) int64 sizes, -1 beyond the rank. An empty tensor has a legal size of 0.
    """
    sizes = node_feat[:, SHAPE_DIMENSIONS].astype(np.int64)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int64(-1), sizes)


def layout_symbols(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """Map layout values to rows of an embedding.

    Args:
        values: int8 layout values -1..5 of any shape.

    Returns:
        int64 rows 0..6 of the same shape.
    """
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
