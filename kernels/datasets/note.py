"""What was pushed of a dataset folder last: a hidden file beside it, which is never sent.

It is written as soon as Kaggle has accepted a version, and says so until the version is ready: the
push after one that was killed waits for that version and makes no second one.
"""

import json
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError

Note = dict[str, Any]  # see `note`
_READY = "ready"


def note_of(folder: Path) -> Path:
    """Return the note's place."""
    folder = folder.resolve()  # "models/.." and links name the same folder
    return folder.with_name(f".{folder.name}.pushed.json")


def read_note(folder: Path) -> Note | None:
    """Return what the last push has noted; None if nothing, or nothing that can be read."""
    try:
        table = json.loads(note_of(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return table if isinstance(table, dict) else None


def note(dataset_id: str, version: int, digest: str, *, is_ready: bool) -> Note:
    """Return the note of a version.

    Args:
        dataset_id: "owner/slug".
        version: that was made, or is expected.
        digest: of the folder's content.
        is_ready: the version has been seen ready.
    """
    return {"dataset": dataset_id, "version": version, "content": digest, _READY: is_ready}


def is_noted(folder: Path, expected: Note) -> bool:
    """Tell whether the folder's note is the expected one; older ones were of ready versions."""
    return {_READY: True, **(read_note(folder) or {})} == expected


def accepted_version(folder: Path, dataset_id: str, digest: str) -> int | None:
    """Return the version that Kaggle has accepted of this content and nobody has seen ready."""
    version = (read_note(folder) or {}).get("version")
    if not isinstance(version, int):
        return None
    is_open = is_noted(folder, note(dataset_id, version, digest, is_ready=False))
    return version if is_open else None


def write_note(folder: Path, new: Note) -> None:
    """Note a version that Kaggle has accepted, or made.

    Raises:
        PipelineError: the folder beside cannot be written.
    """
    write_text(note_of(folder), json.dumps(new) + "\n")


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
