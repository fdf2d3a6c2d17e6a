"""What the store holds, in numbers."""

from collections.abc import Sequence
from pathlib import Path

from data.graph_store.prepare import Prepared

HEADER = ["collection", "split", "files", "bad", "packed now", "source MiB", "store MiB"]


def as_dict(entry: Prepared) -> dict[str, object]:
    """Return an entry as plain values for JSON."""
    return {
        "id": entry.source.submission_id,
        "split": entry.source.split,
        "error": entry.error,
        "is_new": entry.is_new,
        "source_bytes": file_bytes(entry.source.path),
        "stored": None if entry.stored is None else str(entry.stored.path),
        "stored_bytes": 0 if entry.stored is None else file_bytes(entry.stored.path),
    }


def summary(prepared: Sequence[Prepared]) -> list[list[object]]:
    """Add up files by collection and split; a line below HEADER for each."""
    parts: dict[tuple[str, str], list[Prepared]] = {}
    for entry in prepared:
        parts.setdefault((entry.source.collection.name, entry.source.split), []).append(entry)
    return [
        [
            collection,
            split,
            len(part),
            sum(entry.error is not None for entry in part),
            sum(entry.is_new for entry in part),
            sum(file_bytes(path) for path in {entry.source.path for entry in part}) / 2**20,
            sum(file_bytes(entry.stored.path) for entry in part if entry.stored) / 2**20,
        ]
        for (collection, split), part in parts.items()
    ]


def file_bytes(path: Path) -> int:
    """Return a file's length; 0 without one."""
    return path.stat().st_size if path.is_file() else 0
