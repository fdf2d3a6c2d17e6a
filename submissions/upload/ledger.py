"""What was sent to Kaggle: one JSON line per submission in a file that outlives the runs.

An entry is written before the file is sent, so that a process that is killed leaves a trace, and is
completed afterwards. Its marker, a short tag of the file's hash, stands at the end of the
submission's description, so that Kaggle's list tells what has become of it.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from common.atomic import write_text
from common.errors import PipelineError
from common.locks import locked

SENDING = "sending"  # begun; whether it has arrived is not known
FAILED = "failed"  # it has not arrived
PENDING = "pending"  # arrived, not scored yet; the next two are final
COMPLETE = "complete"
ERROR = "error"
_HASH_SHOWN = 12  # characters of the SHA-256 in a marker: 48 bits


class Entry(BaseModel):
    """One submission.

    Attributes:
        sha256: of the file, in hex.
        size_bytes: of the file.
        file: its name, without folders.
        competition: its slug.
        recipe: that the file was made with, or None.
        revision: of the code that made it, or None.
        message: as given, without the marker.
        marker: what the description at Kaggle ends with; no two entries share one.
        ref: Kaggle's number of the submission, or None.
        time: UTC, ISO 8601, when sending began.
        status: "sending", "failed", "pending", "complete" or "error".
        public_score: or None.
        private_score: or None.
        error: why it failed, or why Kaggle could not score it; None if neither.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    sha256: str
    size_bytes: int
    file: str
    competition: str
    recipe: str | None
    revision: str | None
    message: str
    marker: str
    ref: int | None
    time: str
    status: str
    public_score: float | None
    private_score: float | None
    error: str | None

    @property
    def arrived(self) -> bool:
        """Tell whether Kaggle has it."""
        return self.status not in (SENDING, FAILED)


def hash_of(path: Path) -> str:
    """Return the file's SHA-256 in hex.

    Raises:
        PipelineError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


def marker_of(sha256: str, nth: int) -> str:
    """Return the tag of the nth submission, from 1, of a file: "[sha256:0123456789ab #2]"."""
    return f"[sha256:{sha256[:_HASH_SHOWN]}{f' #{nth}' if nth > 1 else ''}]"


def nth_of(marker: str) -> int:
    """Return which submission of its file a tag is of: 2 for "[sha256:0123456789ab #2]"."""
    _, numbered, nth = marker.strip("[]").partition(" #")
    return int(nth) if numbered else 1


def tag_of(sha256: str) -> re.Pattern[str]:
    """Return what finds the tag of any submission of a file in a description."""
    return re.compile(rf"\[sha256:{sha256[:_HASH_SHOWN]}( #[0-9]{{1,6}})?\]")


def now_text() -> str:
    """Return the time in UTC: "2026-02-03T04:05:06Z"."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_ledger(path: Path) -> list[Entry]:
    """Return the entries, oldest first; none where there is no file.

    Raises:
        PipelineError: the file cannot be read, or a line is no entry.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise PipelineError(f"{path}: cannot be read: {reason}") from error
    return [_entry(path, row, line) for row, line in enumerate(lines, start=1) if line.strip()]


def put_entry(path: Path, entry: Entry) -> None:
    """Write an entry in the place of the one with its marker, or at the end.

    Raises:
        PipelineError: the ledger is damaged or cannot be written.
    """

    def put(entries: list[Entry]) -> list[Entry]:
        markers = [other.marker for other in entries]
        if entry.marker not in markers:
            return [*entries, entry]
        place = markers.index(entry.marker)
        return [*entries[:place], entry, *entries[place + 1 :]]

    change_ledger(path, put)


def change_ledger(path: Path, change: Callable[[list[Entry]], Iterable[Entry]]) -> None:
    """Replace the entries by what `change` makes of them, while no other process does the same.

    Raises:
        PipelineError: the ledger is damaged or cannot be written.
    """
    with locked(path.with_name(f".{path.name}.lock")):
        before = read_ledger(path)
        after = list(change(before))
        if after != before:
            write_text(path, "".join(f"{entry.model_dump_json()}\n" for entry in after))


def _entry(path: Path, row: int, line: str) -> Entry:
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise PipelineError(
            f"{path}: row {row}: {where}{first['msg'].lower()}; expected an entry as "
            "`submission upload` writes it; mend the line or name another --ledger"
        ) from None
