"""Layouts and dimensions of nodes without the dataset's padding.

The dataset pads `layout_minor_to_major` with 0, which is also a dimension number. A rank-2 order
(1, 0) and a rank-3 order (1, 0, 2) that is cut short therefore look alike. The rank is recovered
exactly: an order is a permutation of 0..rank-1, so its largest entry is rank - 1. If that is 0,
the tensor has rank 1 if it has a dimension, else rank 0.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import MINOR_TO_MAJOR, RANK_MAX, SHAPE_DIMENSIONS
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR


def tensor_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output rank, (n,) int64 of (n, 140) features; without dimensions 0."""
    largest = node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    has_dimension = node_feat[:, SHAPE_DIMENSIONS.start] > 0
    return np.where(largest > 0, largest + 1, has_dimension).astype(np.int64)


def minor_to_major(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return each node's layout, minor dimension first, -1 beyond its rank; (n, 6) int8."""
    order = node_feat[:, MINOR_TO_MAJOR].astype(np.int8)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int8(-1), order)


def dimension_sizes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output dimensions, -1 beyond its rank; (n, 6) int64.

    A legal size of 0 (an empty tensor) stays 0.
    """
    sizes = node_feat[:, SHAPE_DIMENSIONS].astype(np.int64)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int64(-1), sizes)


def layout_symbols(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """Map layout values -1..5 to embedding rows 0..6; any shape, int64."""
    return values.astype(np.int64) + 1


def minor_codes(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Pack the two minor dimensions of each layout into one number 0..48, 0 if none is named.

    They decide how a tensor is cut into the TPU's 8 x 128 tiles, and configs often name no more.
    Of t layouts side by side, (…, 6·t) int8 values -1..5: (…, t) int8.
    """
    first = values[..., 0::VALUES_PER_TENSOR]
    second = values[..., 1::VALUES_PER_TENSOR]
    return (first + 1) * np.int8(N_SYMBOLS) + second + 1
