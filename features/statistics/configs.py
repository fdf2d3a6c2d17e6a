"""Hand-crafted statistics of configs: rows for trees, inputs for networks.

There are two sets. Networks also read "plain". "all" adds details of each config and statistics of
the whole program. docs/reference/statistics.md has the formula of each statistic.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from common.files import write_bytes
from common.progress import each
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, config_hashes
from data.tree import GraphFile
from features.statistics.layout_tables import (
    CONFIG_STATISTICS,
    LAYOUT_DETAILS,
    LAYOUT_STATISTICS,
    LayoutTables,
    graph_statistics,
    layout_rows,
    layout_tables,
)
from features.statistics.program import PROGRAM_STATISTICS, program_statistics
from features.statistics.tile import TILE_DETAILS, TILE_STATISTICS, tile_details, tile_statistics

if TYPE_CHECKING:
    import polars as pl

StatisticsSet = Literal["plain", "all"]
STATISTICS = {"layout": LAYOUT_STATISTICS, "tile": TILE_STATISTICS}
ALL_STATISTICS = {
    "layout": (*LAYOUT_STATISTICS, *LAYOUT_DETAILS, *PROGRAM_STATISTICS),
    "tile": (*TILE_STATISTICS, *TILE_DETAILS, *PROGRAM_STATISTICS),
}
N_CONFIG_STATISTICS = len(CONFIG_STATISTICS)
# Limit of the slots and the layouts of pairs at once, which then stay in a core's cache.
CHUNK_BYTES = 1 << 20
# Number of configs that determine the mean and the variance of a graph's statistics.
MAX_MOMENTS_CONFIGS = 4096

RowStatistics = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def statistics_names(kind: str, statistics: StatisticsSet) -> tuple[str, ...]:
    """Return the names of the statistics of a kind, "layout" or "tile", in column order."""
    return (STATISTICS if statistics == "plain" else ALL_STATISTICS)[kind]


def statistics_of(graph: Graph, statistics: StatisticsSet) -> RowStatistics:
    """Return the function from rows (r,) of a graph to the statistics of these configs, (r, f)."""
    if isinstance(graph, LayoutGraph):
        return _layout_rows(graph, statistics)
    assert isinstance(graph, TileGraph)
    table = tile_statistics(graph)
    if statistics == "all":
        program = np.tile(program_statistics(graph).astype(np.float32), (len(table), 1))
        table = np.concatenate([table, tile_details(graph), program], axis=1)
    return lambda rows: table[rows]


def config_moments(
    graph: LayoutGraph, tables: LayoutTables, distinct: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute mean and variance of the CONFIG_STATISTICS over configs that are no query configs.

    Only differences within a graph order its configs, and a network need not learn typical values
    of graphs. If a graph has many configs, their content selects a sample, so that the order of
    configs does not matter.

    Args:
        distinct: (u,) first row of each distinct config.

    Returns:
        (s,) means and (s,) variances.
    """
    rows = distinct[distinct < graph.n_counted]
    if len(rows) > MAX_MOMENTS_CONFIGS:
        hashes = config_hashes(graph)[rows]
        rows = rows[np.argpartition(hashes, MAX_MOMENTS_CONFIGS)[:MAX_MOMENTS_CONFIGS]]
    values = _rows_in_chunks(graph, tables, rows)
    return values.mean(axis=0), values.var(axis=0)


def statistics_frame(graph: Graph) -> "pl.DataFrame":
    """Tabulate the statistics of all configs of a graph.

    Returns:
        One row per config: `graph` (submission ID), `config` (row in the file), `config_hash` (hash
        of the content), `runtime_ns` (null if withheld), and a Float32 column per statistic.
    """
    import polars as pl

    kind = graph.file.collection.kind
    table = statistics_of(graph, "all")(np.arange(graph.n_configs))
    runtime = pl.Series("runtime_ns", graph.runtime_ns if graph.is_labelled else None, pl.Int64)
    return pl.DataFrame(
        {
            "graph": pl.repeat(graph.file.submission_id, graph.n_configs, eager=True),
            "config": np.arange(graph.n_configs, dtype=np.uint32),
            "config_hash": config_hashes(graph),
            "runtime_ns": runtime.extend_constant(None, graph.n_configs - len(runtime)),
            **dict(zip(statistics_names(kind, "all"), table.T, strict=True)),
        }
    )


def write_statistics(files: Sequence[GraphFile], folder: Path) -> list[Path]:
    """Write the statistics of graphs as parquet files, with the folders of the data tree."""
    paths = []
    for file in each("statistics", files):
        path = folder / file.collection.folder / file.split / f"{file.name}.parquet"
        content = io.BytesIO()
        statistics_frame(read_graph(file)).write_parquet(content)
        write_bytes(path, content.getvalue())
        paths.append(path)
    return paths


def _layout_rows(graph: LayoutGraph, statistics: StatisticsSet) -> RowStatistics:
    is_all = statistics == "all"
    tables = layout_tables(graph, with_details=is_all)
    constants = [graph_statistics(graph), program_statistics(graph) if is_all else ()]

    def compute(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        values = _rows_in_chunks(graph, tables, rows)
        plain, details = np.split(values, [N_CONFIG_STATISTICS], axis=1)
        of_graph, of_program = (np.tile(part, (len(rows), 1)) for part in constants)
        columns = (plain, of_graph, details, of_program)
        return np.concatenate(columns, axis=1, dtype=np.float32, casting="same_kind")

    return compute


def _rows_in_chunks(
    graph: LayoutGraph, tables: LayoutTables, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    chunk = max(1, CHUNK_BYTES // (tables.starts.nbytes + tables.default.nbytes))
    values = np.empty((len(rows), tables.slots.shape[1]))
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        values[part] = layout_rows(tables, graph.configs.places(rows[part]))
    return values
