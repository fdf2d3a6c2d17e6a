"""Hand-crafted statistics of some configs of a graph: rows for trees, inputs for networks."""

import numpy as np
from numpy.typing import NDArray

from data.graph import Graph, LayoutGraph, TileGraph
from features.layout_statistics import (
    GRAPH_STATISTICS,
    LAYOUT_STATISTICS,
    layout_statistics,
    layout_tables,
)
from features.tile_statistics import TILE_STATISTICS, tile_statistics

STATISTICS = {"layout": LAYOUT_STATISTICS, "tile": TILE_STATISTICS}
N_CONFIG_STATISTICS = len(LAYOUT_STATISTICS) - len(GRAPH_STATISTICS)
# Statistics of this many configs are computed at once; bounds memory whatever the file's size.
CHUNK_CONFIGS = 4096


def graph_statistics(graph: Graph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Compute the statistics of some configs of a layout or tile graph; (r, f) float32."""
    if isinstance(graph, TileGraph):
        return tile_statistics(graph)[rows]
    assert isinstance(graph, LayoutGraph)
    tables = layout_tables(graph)
    chunks = np.array_split(rows, max(1, -(-len(rows) // CHUNK_CONFIGS)))
    return np.concatenate([layout_statistics(tables, graph.configs.rows(part)) for part in chunks])


def centred_statistics(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Compute what tells configs apart: each statistic less its mean over `rows`; (r, s) float32.

    What is the same for all configs of the graph is left out. Only differences within a graph
    order its configs, and a network need not learn what is usual for which graph.
    """
    statistics = graph_statistics(graph, rows)[:, :N_CONFIG_STATISTICS]
    return statistics - statistics.mean(axis=0)
