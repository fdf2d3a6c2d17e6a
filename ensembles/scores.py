"""Score files of a run: where they lie, and how they are made so that no graph is scored twice.

Until all graphs are scored, those that are lie in a file beside the one that will hold all.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from common.errors import OutOfTime
from common.progress import out_of_time, progress
from data.tree import Collection, GraphFile
from models.predict import predict, read_scores, write_scores
from models.training.jobs import Ranker

KEEP_EVERY_S = 60.0  # what a kill costs at most, besides the graph it hits


def scores_path(out: Path, collection: Collection, member: str, split: str) -> Path:
    """Return where a run keeps the scores of one member, or of "blend", for a split."""
    return out / "scores" / collection.slug / member / f"{split}.parquet"


def begun_path(path: Path) -> Path:
    """Return where the scores lie that `path` will hold, as long as graphs are missing."""
    return path.with_name(f"{path.stem}.begun.parquet")


def scores_by_graph(
    path: Path,
    files: Sequence[GraphFile],
    load: Callable[[], Ranker],
    *,
    what: str,
    clock: Callable[[], float] = time.monotonic,
) -> pl.DataFrame:
    """Return the scores in `path`; make them first, or the rest of them, if it does not exist.

    Columns as in models.predict.SCORE_SCHEMA, graphs in the order of `files`.

    Raises:
        OutOfTime: graphs are left; the same call goes on after those that are scored.
        PipelineError: a damaged file, or scores that are not finite.
    """
    begun = begun_path(path)
    if not path.exists():
        tables = _begun_tables(begun)
        left = [file for file in files if file.name not in tables]
        progress(what, 0, len(files))  # says what begins
        ranker, kept_at = None, clock()
        for file in left:
            is_over = out_of_time()
            if tables and (is_over or clock() - kept_at >= KEEP_EVERY_S):
                write_scores(begun, pl.concat(tables.values()))
                kept_at = clock()
            if is_over:
                raise OutOfTime(f"{path}: out of time with {len(tables)} of {len(files)} graphs")
            ranker = ranker or load()
            tables[file.name] = predict(ranker, [file])
            progress(what, len(tables), len(files))
        write_scores(path, pl.concat([tables[file.name] for file in files]))
    begun.unlink(missing_ok=True)
    return read_scores(path)


def _begun_tables(begun: Path) -> dict[str, pl.DataFrame]:
    if not begun.exists():
        return {}
    parts = read_scores(begun).partition_by("graph", maintain_order=True)
    return {part["graph"][0]: part for part in parts}
