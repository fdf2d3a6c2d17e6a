"""Scores of models on a split: a parquet file each, one row per config, keyed by config content."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from common.files import read_table, table_facts, write_table
from data.graph_store.stored_graph import read_graph, read_layout
from data.graphs.graph import Graph, config_hashes, sample_rows
from data.tree import GraphFile

# Rows are named by what the config holds, since row order differs between copies of the dataset.
SCORE_SCHEMA = {
    "graph": pl.String,
    "config": pl.UInt32,
    "config_hash": pl.UInt64,
    "score": pl.Float32,
}

Rows = NDArray[np.int64]
ALL_CONFIGS: Mapping[str, Rows] = MappingProxyType({})


def sampled(files: Iterable[GraphFile], at_most: int) -> dict[str, Rows]:
    """Draw rows of those layout graphs that have more configs, by submission ID; 0 draws none.

    Raises:
        PipelineError: a file is damaged.
    """
    layouts = [file for file in files if at_most and file.collection.kind == "layout"]
    many = (graph for graph in map(read_layout, layouts) if graph.n_configs > at_most)
    return {graph.file.submission_id: sample_rows(graph, at_most) for graph in many}


def read_ahead(
    files: Sequence[GraphFile], subsets: Mapping[str, Rows] = ALL_CONFIGS
) -> Generator[Graph]:
    """Read graphs, each beside the work on the one before it; `subsets` are rows by layout's ID.

    Raises:
        PipelineError: a file is damaged.
    """

    def read(file: GraphFile) -> Graph:
        rows = subsets.get(file.submission_id)
        return read_graph(file) if rows is None else read_layout(file).only(rows)

    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        coming = [thread.submit(read, file) for file in files[:1]]
        for number in range(len(files)):
            graph = coming.pop().result()
            coming += [thread.submit(read, file) for file in files[number + 1 : number + 2]]
            yield graph


def scores_table(graph: Graph, scores: NDArray[np.float32], *, ranker: str = "") -> pl.DataFrame:
    """Name each config of a graph, scored (c,), by what it holds; columns as in SCORE_SCHEMA.

    Raises:
        PipelineError: a score is not finite; names the `ranker`.
    """
    rows = np.arange(graph.n_configs) if graph.rows is None else graph.rows
    if not np.isfinite(scores).all():
        place = int(np.argmin(np.isfinite(scores)))
        raise PipelineError(
            f"{ranker or 'ranking'}: {graph.file.submission_id}: config {rows[place]} is scored "
            f"{scores[place]}; expected a finite number"
        )
    if "table" not in graph.made:  # the tables of all rankers share its columns
        names, configs = [graph.file.name] * graph.n_configs, rows.astype(np.uint32)
        columns = {"graph": names, "config": configs, "config_hash": config_hashes(graph)}
        graph.made["table"] = pl.DataFrame(columns, schema_overrides=SCORE_SCHEMA)
    table: pl.DataFrame = graph.made["table"]
    return table.with_columns(pl.Series("score", scores, dtype=pl.Float32))


def write_scores(path: Path, scores: pl.DataFrame, collection: str) -> None:
    """Write scores with the name of their collection, which no graph's name tells."""
    write_table(path, scores, collection=collection)


def read_scores(path: Path) -> pl.DataFrame:
    """Read scores, or raise PipelineError: missing, damaged, or with other columns."""
    return read_table(path, SCORE_SCHEMA)


def collection_of_scores(path: Path) -> str | None:
    """Return the collection that scores were written as; None of files of earlier versions."""
    return table_facts(path).get("collection")
