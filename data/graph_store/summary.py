"""What the store holds, in numbers."""

from collections.abc import Sequence
from pathlib import Path

from data.graph_store.archived_graph import shipped_path
from data.graph_store.prepare import Prepared


def as_dict(entry: Prepared, *, archive: Path | None = None) -> dict[str, object]:
    """Return an entry as plain values for JSON.

    Args:
        archive: the folder of the store's compressed files, to add the entry's there.
    """
    stored = entry.stored
    values: dict[str, object] = {
        "id": entry.source.submission_id,
        "split": entry.source.split,
        "error": entry.error,
        "is_new": entry.is_new,
        "source_bytes": _size(entry.source.path),
        "stored": None if stored is None else str(stored.path),
        "stored_bytes": 0 if stored is None else _size(stored.path),
    }
    if archive is not None:
        path = shipped_path(archive, entry.source)
        values["archived"] = None if stored is None else str(path)
        values["archived_bytes"] = 0 if stored is None else _size(path)
    return values


def summary(
    prepared: Sequence[Prepared], *, archive: Path | None = None
) -> tuple[list[str], list[list[object]]]:
    """Add up files by collection and split; a header and one line each.

    Args:
        archive: the folder of the store's compressed files, to add up these too.
    """
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
    if archive is not None:
        header.append("archive MiB")
        for line, part in zip(lines, parts.values(), strict=True):
            paths = [shipped_path(archive, entry.source) for entry in part if entry.stored]
            line.append(sum(map(_size, paths)) / 2**20)
    return header, lines


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
