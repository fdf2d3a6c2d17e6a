"""What was pushed of a dataset folder last: a hidden file beside it, which is never sent.

It is written as soon as Kaggle has accepted a version, and says so until the version is ready: the
push after one that was killed waits for that version and makes no second one.
"""

import json
from pathlib import Path
from typing import Any

from data.atomic import write_text
from data.errors import PipelineError

Note = dict[str, Any]  # the dataset, the version that was made, and the digest of its content


def note_of(folder: Path) -> Path:
    """Return the note's place."""
    folder = folder.resolve()  # "models/.." and links name the same folder
    return folder.with_name(f".{folder.name}.pushed.json")


def read_note(folder: Path) -> Note | None:
    """Return what the last push has noted; None if nothing, or nothing that can be read."""
    try:
        note = json.loads(note_of(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def write_note(folder: Path, note: Note) -> None:
    """Note a version that Kaggle has accepted, or made.

    Raises:
        PipelineError: the folder beside cannot be written.
    """
    write_text(note_of(folder), json.dumps(note) + "\n")


def require_writable(folder: Path) -> None:
    """Write the note as it is, or an empty one, before anything is sent that it must tell of.

    Raises:
        PipelineError: it cannot be written.
    """
    try:
        write_note(folder, read_note(folder) or {})
    except PipelineError as error:
        raise PipelineError(
            f"{error}; what is pushed must be noted there; nothing was sent"
        ) from None
