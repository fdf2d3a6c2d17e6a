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
from features.padding import minor_codes
from features.statistics.layout import (
    LAYOUT_STATISTICS,
    N_CONFIG_STATISTICS,
    layout_statistics,
    layout_tables,
)
from features.statistics.layout_details import LAYOUT_DETAILS, detail_tables, layout_details
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
# Configs per computation, which limits memory for large files.
CHUNK_CONFIGS = 4096

RowStatistics = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def statistics_names(kind: str, chosen: StatisticsSet) -> tuple[str, ...]:
    """Return the names of a set's statistics in the order of the columns.

    Args:
        kind: "layout" or "tile".
        chosen: Set of statistics.
    """
    return (STATISTICS if chosen == "plain" else ALL_STATISTICS)[kind]


def statistics_of(graph: Graph, chosen: StatisticsSet) -> RowStatistics:
    """Compute the part of the statistics that all configs of a graph share.

    Returns:
        A function from rows (r,) to the statistics of these configs, (r, f) float32.
    """
    if isinstance(graph, LayoutGraph):
        return _layout_rows(graph, chosen)
    assert isinstance(graph, TileGraph)
    table = tile_statistics(graph)
    if chosen == "all":
        table = np.concatenate([table, tile_details(graph), _program(graph, len(table))], axis=1)
    return lambda rows: table[rows]


def centred_statistics(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Compute each statistic minus its mean over configs that are no query configs.

    Statistics that are equal for all configs of the graph are left out. Only differences within a
    graph order its configs, and a network need not learn typical values of graphs.

    Args:
        graph: Layout graph of the configs.
        rows: (r,) rows of configs.

    Returns:
        (r, s) float32.
    """
    statistics = statistics_of(graph, "plain")(rows)[:, :N_CONFIG_STATISTICS]
    return statistics - statistics[rows < graph.n_counted].mean(axis=0)


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
    """Write the statistics of graphs as parquet files, with the folders of the data tree.

    Args:
        files: Graphs to read. Errors are those of `read_graph`.
        folder: Folder for the parquet files.

    Returns:
        Paths of the files.
    """
    written = []
    for file in each("statistics", files):
        path = folder / file.collection.folder / file.split / f"{file.name}.parquet"
        content = io.BytesIO()
        statistics_frame(read_graph(file)).write_parquet(content)
        write_bytes(path, content.getvalue())
        written.append(path)
    return written


def _layout_rows(graph: LayoutGraph, chosen: StatisticsSet) -> RowStatistics:
    tables = layout_tables(graph)
    details = detail_tables(graph, tables) if chosen == "all" else None
    vector_codes = minor_codes(graph.configs.vectors)
    program = _program(graph, 1) if chosen == "all" else None

    def chunk(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        codes = vector_codes.take(graph.configs.vector_ids(rows), axis=0)
        plain = layout_statistics(tables, codes)
        if details is None or program is None:
            return plain
        detailed = layout_details(details, tables, codes, graph.configs.places(rows))
        return np.concatenate([plain, detailed, program.repeat(len(rows), axis=0)], axis=1)

    def compute(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        table = np.empty((len(rows), len(statistics_names("layout", chosen))), np.float32)
        for part in np.array_split(np.arange(len(rows)), max(1, -(-len(rows) // CHUNK_CONFIGS))):
            table[part] = chunk(rows[part])
        return table

    return compute


def _program(graph: Graph, n_rows: int) -> NDArray[np.float32]:
    return np.tile(program_statistics(graph).astype(np.float32), (n_rows, 1))
