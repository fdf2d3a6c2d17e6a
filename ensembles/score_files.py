"""Scores of a run, where they lie and the rankings that follow from them."""

from pathlib import Path

from data.tree import Collection


def scores_path(out: Path, collection: Collection, member: str, split: str) -> Path:
    """Return where a run keeps the scores of one member, or of "blend", for a split."""
    return out / "scores" / collection.slug / member / f"{split}.parquet"
