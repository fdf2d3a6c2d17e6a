"""Scores of a run, where they lie and the rankings that follow from them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from data.tree import Collection
from submissions.write import SubmissionRow, ranking_from_scores


def scores_path(out: Path, collection: Collection, member: str, split: str) -> Path:
    """Return where a run keeps the scores of one member, or of "blend", for a split."""
    return out / "scores" / collection.slug / member / f"{split}.parquet"


def submission_rows(
    blended: Sequence[tuple[Collection, pl.DataFrame]],
) -> Iterator[SubmissionRow]:
    """Rank each graph's configs by score; equal scores keep the file's row order."""
    for collection, scores in blended:
        by_graph = scores.sort("graph", "config", maintain_order=True).partition_by(
            "graph", maintain_order=True
        )
        for table in by_graph:
            ranking = ranking_from_scores(table["score"].to_numpy())
            yield SubmissionRow(f"{collection.name}:{table['graph'][0]}", ranking)
