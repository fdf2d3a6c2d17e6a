"""Restore "no dimension" (-1) where the stock features are padded with 0.

The stock `layout_minor_to_major` lists are padded with 0, which is also a legal dimension number,
so a rank-2 order (1, 0) and a rank-3 order (1, 0, 2) cut short look alike. The rank can be had
back exactly: a minor-to-major list is a permutation of 0..rank-1, so its largest entry is
rank - 1; where that is 0, the tensor has rank 1 if it has a dimension at all, else rank 0.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import MINOR_TO_MAJOR, RANK_MAX, SHAPE_DIMENSIONS

Padding = Literal["zero", "minus-one"]  # what stands in a layout beyond the tensor's rank


def tensor_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output rank.

    Args:
        node_feat: (n, 140) stock features.

    Returns:
        (n,) int64, 0..6; tuples and other values without dimensions have rank 0.
    """
    largest = node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    has_dimension = node_feat[:, SHAPE_DIMENSIONS.start] > 0
    return np.where(largest > 0, largest + 1, has_dimension).astype(np.int64)


def minor_to_major(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return each node's layout, minor dimension first, with -1 beyond its rank.

    Args:
        node_feat: (n, 140) stock features.

    Returns:
        (n, 6) int8 with values -1..5.
    """
    order = node_feat[:, MINOR_TO_MAJOR].astype(np.int8)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int8(-1), order)


def dimension_sizes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output dimensions with -1 beyond its rank.

    Returns:
        (n, 6) int64; a legal size of 0 (an empty tensor) stays 0.
    """
    sizes = node_feat[:, SHAPE_DIMENSIONS].astype(np.int64)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int64(-1), sizes)
