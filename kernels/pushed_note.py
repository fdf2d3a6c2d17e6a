"""What was pushed of a dataset folder last: a hidden file beside it, which is never sent."""

import json
from pathlib import Path
from typing import Any

from data.atomic import write_text

Note = dict[str, Any]  # the dataset, the version that was made, and the digest of its content


def note_of(folder: Path) -> Path:
    """Return the note's place."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.pushed.json")


def read_note(folder: Path) -> Note | None:
    """Return what the last push has noted; None if nothing, or nothing that can be read."""
    try:
        note = json.loads(note_of(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def write_note(folder: Path, note: Note) -> None:
    """Note a push that has ended well.

    Raises:
        PipelineError: the folder beside cannot be written.
    """
    write_text(note_of(folder), json.dumps(note) + "\n")
