"""The submission of a run as Kaggle lists it, stored in the run folder.

The description of each submission ends with the hash of its file, so the list names the run.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pydantic import FiniteFloat

from common.files import open_regular, read_json, write_text

SENT = "kaggle-scores.json"
# Characters of the SHA-256 in a tag, 48 bits.
HASH_CHARACTERS = 12


@dataclass(frozen=True)
class Submission:
    """One submission in the list of Kaggle."""

    ref: int
    file_name: str
    description: str
    size_bytes: int
    submitted_at: datetime | None = None
    status: str = "pending"
    public_score: FiniteFloat | None = None
    private_score: FiniteFloat | None = None
    error: str = ""


def digest_of(path: Path) -> str:
    """Return the part of a file's SHA-256 that the tag of its submission has."""
    with open_regular(path) as stream:
        return hashlib.sha256(stream.read()).hexdigest()[:HASH_CHARACTERS]


def is_of(submission: Submission, digest: str) -> bool:
    """Return whether a submission is of the file with such a digest."""
    return bool(re.search(rf"\[sha256:{digest}( #[0-9]+)?\]", submission.description))


def store_sent(file: Path, listed: Iterable[Submission]) -> bool:
    """Write the submission of a run's file into the run folder, the newest one with a score."""
    if not file.is_file():
        return False
    digest = digest_of(file)
    sent = [row for row in listed if is_of(row, digest)]
    if sent:
        best = next((row for row in sent if row.public_score is not None), sent[0])
        # The list may end before a submission that has a score.
        stored = read_sent(file) if best.public_score is None else None
        best = stored if stored and stored.public_score is not None else best
        write_text(file.with_name(SENT), json.dumps(asdict(best), indent=1, default=str) + "\n")
    return bool(sent)


def read_sent(file: Path) -> Submission | None:
    """Read the submission of a run's file. None if it is unknown, or of another content."""
    path = file.with_name(SENT)
    if not (path.exists() and file.is_file()):
        return None
    sent = read_json(path, Submission, expected="a submission that `submission list` stored")
    return sent if is_of(sent, digest_of(file)) else None
