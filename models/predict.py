"""Scores of models on a split: a parquet file each, one row per config, keyed by its content."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from common.files import read_table, table_facts, write_table
from data.cache import LRUCache
from data.graph_store.stored_graph import read_graph, read_layout
from data.graphs.graph import Graph, config_hashes, sample_rows
from data.tree import GraphFile

# The hash of the content identifies a config, because copies of the dataset differ in row order.
SCORE_SCHEMA = {
    "graph": pl.String,
    "config": pl.UInt32,
    "config_hash": pl.UInt64,
    "score": pl.Float32,
}

Rows = NDArray[np.int64]
ALL_CONFIGS: Mapping[str, Rows] = MappingProxyType({})


def sampled(files: Iterable[GraphFile], at_most: int) -> dict[str, Rows]:
    """Sample rows of the layout graphs with more than `at_most` configs. 0 samples no graph."""
    layouts = [file for file in files if at_most and file.collection.kind == "layout"]
    large = (graph for graph in map(read_layout, layouts) if graph.n_configs > at_most)
    return {graph.file.submission_id: sample_rows(graph, at_most) for graph in large}


def read_ahead(
    files: Sequence[GraphFile], subsets: Mapping[str, Rows] = ALL_CONFIGS
) -> Generator[Graph]:
    """Read graphs, each during the work on the graph before it."""

    def read(file: GraphFile) -> Graph:
        rows = subsets.get(file.submission_id)
        return read_graph(file) if rows is None else read_layout(file).only(rows)

    latest = LRUCache(read, max_bytes=0, size=lambda graph: 1)
    for number, file in enumerate(files):
        graph = latest(file)
        latest.prefetch(files[number + 1 : number + 2])
        yield graph


def scores_table(
    graph: Graph, scores: NDArray[np.float32] | None, *, ranker: str = ""
) -> pl.DataFrame:
    """Return the scores (c,) of a graph's configs in SCORE_SCHEMA, or no rows without scores."""
    if scores is None:
        return pl.DataFrame(schema=SCORE_SCHEMA)
    rows = np.arange(graph.n_configs) if graph.rows is None else graph.rows
    if not np.isfinite(scores).all():
        place = int(np.argmin(np.isfinite(scores)))
        raise PipelineError(
            f"{ranker or 'ranking'}: {graph.file.submission_id}: config {rows[place]} is scored "
            f"{scores[place]}; expected a finite number"
        )
    if "table" not in graph.cache:  # the tables of all rankers share its columns
        names, configs = [graph.file.name] * graph.n_configs, rows.astype(np.uint32)
        columns = {"graph": names, "config": configs, "config_hash": config_hashes(graph)}
        graph.cache["table"] = pl.DataFrame(columns, schema_overrides=SCORE_SCHEMA)
    table: pl.DataFrame = graph.cache["table"]
    return table.with_columns(pl.Series("score", scores, dtype=pl.Float32))


def write_scores(path: Path, scores: pl.DataFrame, collection: str) -> None:
    """Write scores with the name of their collection, which is not part of a graph's name."""
    write_table(path, scores, collection=collection)


def read_scores(path: Path) -> pl.DataFrame:
    return read_table(path, SCORE_SCHEMA)


def collection_of_scores(path: Path) -> str | None:
    """Return the collection of a file of scores, or None if an older version wrote the file."""
    return table_facts(path).get("collection")
