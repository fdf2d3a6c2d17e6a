"""Scores of one model on a split: a parquet file, one row per config, keyed by config content."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.checksums import read_table, write_table
from common.errors import PipelineError
from common.progress import progress
from data.graphs.distinct import config_hashes
from data.graphs.graph import Graph
from data.read import read_graph
from data.tree import GraphFile
from models.training.jobs import Ranker

# Rows are named by what the config holds, since row order differs between copies of the dataset.
SCORE_SCHEMA = {
    "graph": pl.String,
    "config": pl.UInt32,
    "config_hash": pl.UInt64,
    "score": pl.Float32,
}


def predict(
    ranker: Ranker,
    files: Sequence[GraphFile],
    *,
    what: str | None = None,
) -> pl.DataFrame:
    """Score every config of every graph, one graph in memory at a time.

    Columns as in SCORE_SCHEMA; the lower a score, the faster.

    Raises:
        PipelineError: a file is damaged, or a model gives scores that are not finite.
    """
    frames = []
    for number, file in enumerate(files):
        if what:
            progress(what, number, len(files))
        graph = read_graph(file)
        frames.append(scores_table(graph, ranker.score(graph)))
    if what and files:
        progress(what, len(files), len(files))
    return pl.concat(frames) if frames else pl.DataFrame(schema=SCORE_SCHEMA)


def scores_table(graph: Graph, scores: NDArray[np.float32]) -> pl.DataFrame:
    """Name each config of a graph by what it holds; columns as in SCORE_SCHEMA.

    Args:
        scores: (c,) float32 of its configs by row.

    Raises:
        PipelineError: a score is not finite.
    """
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise PipelineError(f"{graph.file.path}: config {row} is scored {scores[row]}; not finite")
    return pl.DataFrame(
        {
            "graph": [graph.file.name] * graph.n_configs,
            "config": np.arange(graph.n_configs, dtype=np.uint32),
            "config_hash": config_hashes(graph),
            "score": scores,
        },
        schema=SCORE_SCHEMA,
    )


def write_scores(path: Path, scores: pl.DataFrame) -> None:
    """Write scores as parquet, whole or not at all."""
    write_table(path, scores)


def read_scores(path: Path) -> pl.DataFrame:
    """Read scores.

    Raises:
        PipelineError: the file is missing, damaged, or has other columns.
    """
    scores = read_table(path)
    if dict(scores.schema) != SCORE_SCHEMA:
        wanted = ", ".join(SCORE_SCHEMA)
        raise PipelineError(f"{path}: has columns {', '.join(scores.columns)}; expected {wanted}")
    return scores


def cached_scores(path: Path, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Return the scores in `path`; make and write them first if there are none."""
    if not path.exists():
        write_scores(path, make())
    return read_scores(path)
