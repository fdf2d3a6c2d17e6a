"""Equal configs of a graph, found by content: many are measured more than once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.configs import distinct_rows, hash_rows
from data.graph import Graph, LayoutGraph, TileGraph


def config_hashes(graph: Graph) -> NDArray[np.uint64]:
    """Return (c,) uint64 content hashes of a graph's configs, equal on every machine."""
    if isinstance(graph, TileGraph):
        return hash_rows(graph.config_feat + np.float32(0))  # -0 becomes 0, its equal
    assert isinstance(graph, LayoutGraph)
    return graph.configs.content_hashes()


def distinct_configs(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs.

    Returns:
        first: (u,) int64 the first row of each distinct config, ascending.
        group: (c,) int64 which distinct config a row is.
    """
    return distinct_rows(config_hashes(graph))


def group_means(values: NDArray[Any], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Average `values` (c,) within each group; (u,) float64."""
    return np.bincount(group, weights=values.astype(np.float64)) / np.bincount(group)
