"""Statistics as tables: a parquet file per graph, for polars to scan lazily as one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from common.atomic import atomic_path
from common.progress import progress
from data.graphs.distinct import config_hashes
from data.graphs.graph import Graph
from data.read import read_graph
from data.tree import GraphFile
from features.statistics.configs import statistics_names, statistics_of


def statistics_frame(graph: Graph) -> pl.DataFrame:
    """Tabulate the statistics of all configs of a graph.

    Returns:
        A row per config: graph (its submission ID), config (its row in the file), config_hash (of
        its content), runtime_ns (null where withheld), and a Float32 column per statistic.
    """
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
    """Write the statistics of graphs below `folder`, as the official tree; one in memory at a time.

    Raises:
        PipelineError: a file is damaged, or the disk is full.
    """
    written = []
    for number, file in enumerate(files, start=1):
        path = folder / file.collection.folder / file.split / f"{file.name}.parquet"
        with atomic_path(path) as temporary:
            statistics_frame(read_graph(file)).write_parquet(temporary)
        written.append(path)
        progress("statistics", number, len(files))
    return written
