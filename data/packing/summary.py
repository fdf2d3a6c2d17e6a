"""What the store holds, in numbers."""

from collections.abc import Sequence
from pathlib import Path

from data.packing.prepare import Prepared


def as_dict(entry: Prepared) -> dict[str, object]:
    """Return an entry as plain values for JSON."""
    stored = entry.stored
    return {
        "id": entry.source.submission_id,
        "split": entry.source.split,
        "error": entry.error,
        "is_new": entry.is_new,
        "source_bytes": _size(entry.source.path),
        "stored": None if stored is None else str(stored.path),
        "stored_bytes": 0 if stored is None else _size(stored.path),
    }


def summary(prepared: Sequence[Prepared]) -> tuple[list[str], list[list[object]]]:
    """Add up files by collection and split; a header and one line each."""
    parts: dict[tuple[str, str], list[Prepared]] = {}
    for entry in prepared:
        parts.setdefault((entry.source.collection.name, entry.source.split), []).append(entry)
    header = ["collection", "split", "files", "bad", "packed now", "source MiB", "store MiB"]
    lines: list[list[object]] = [
        [
            collection,
            split,
            len(part),
            sum(entry.error is not None for entry in part),
            sum(entry.is_new for entry in part),
            sum(_size(entry.source.path) for entry in part) / 2**20,
            sum(_size(entry.stored.path) for entry in part if entry.stored) / 2**20,
        ]
        for (collection, split), part in parts.items()
    ]
    return header, lines


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
