"""Send a submission once, and list what was sent.

A tag of the file's hash stands at the end of each submission's description, so that Kaggle's own
list tells what was sent, whichever machine did it: nothing is kept here.
"""

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from common.credentials import one_line
from common.errors import PipelineError
from common.files import open_regular
from common.http import RetryPolicy
from common.kaggle import (
    POLICY,
    KaggleSession,
    ask,
    kaggle_session,
    send_once,
    upload_file,
)

COMPETITION = "predict-ai-model-runtime"
_IN_DOUBT = (
    "it may have arrived: `fast-or-slow submission list` tells, and the same command again "
    "looks there before it sends anything"
)
_LONGEST_TEXT = 1000  # characters
_HASH_SHOWN = 12  # characters of the SHA-256 in a tag: 48 bits
_PAGE, _MOST_PAGES = 100, 20  # 2000 submissions: years of them


class Submission(NamedTuple):
    """One submission as Kaggle lists it; a score is None until there is one."""

    ref: int  # Kaggle's number
    file_name: str
    description: str
    size_bytes: int
    submitted_at: datetime | None = None  # UTC
    status: str = "pending"  # or "complete" or "error"
    public_score: float | None = None
    private_score: float | None = None
    error: str = ""


def submit(
    path: Path, message: str, *, force: bool = False, policy: RetryPolicy = POLICY
) -> Submission:
    """Send a file, which the caller has checked, unless Kaggle lists it already.

    It is never sent twice: where the answer is lost, Kaggle's list tells what has become of it.

    Raises:
        PipelineError: no such file, missing or refused credentials, rules not accepted, the file
            was sent before, no submission left, or it may or may not have arrived.
    """
    with open_regular(path) as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    with kaggle_session(f"upload {path} to {COMPETITION}", policy) as session:
        earlier = ask(session, lambda: _tagged(session, digest))
        if earlier and not force:
            sent = earlier[0]
            when = f" at {sent.submitted_at:%Y-%m-%dT%H:%M:%SZ}" if sent.submitted_at else ""
            raise PipelineError(
                f"{path}: the same file was sent{when} as submission {sent.ref} ({sent.status}); "
                "nothing was sent; `submission list` shows its score, --force sends it again"
            )
        nth = f" #{len(earlier) + 1}" if earlier else ""
        tag = f"[sha256:{digest[:_HASH_SHOWN]}{nth}]"
        description = f"{_text(message)} {tag}".strip()
        named = {"competitionName": COMPETITION, "fileName": path.name}
        token = upload_file(session, path, "competitions", "start_submission_upload", named)

        def send() -> Submission:
            facts = {"blobFileTokens": token, "submissionDescription": description}
            asked = {"competitionName": COMPETITION, **facts}
            answer = session.call("competitions", "create_submission", asked)
            if not int(answer.ref):
                said = one_line(answer.message) or "nothing"
                raise ValueError(f"expected the new submission's number, Kaggle says: {said}")
            return Submission(int(answer.ref), path.name, description, path.stat().st_size)

        def arrived() -> Submission | None:
            known = {row.ref for row in earlier}
            return next((row for row in _tagged(session, digest) if row.ref not in known), None)

        return send_once(session, send, arrived, _IN_DOUBT)


def list_submissions(limit: int) -> list[Submission]:
    """Return up to `limit` submissions of the account, the newest first.

    Raises:
        PipelineError: missing or refused credentials, rules not accepted, no connection.
    """
    with kaggle_session(f"list submissions of {COMPETITION}") as session:
        return ask(session, lambda: _page(session, limit, 1))


def _tagged(session: KaggleSession, digest: str) -> list[Submission]:
    tag = re.compile(rf"\[sha256:{digest[:_HASH_SHOWN]}( #[0-9]+)?\]")
    return [row for row in _rows(session) if tag.search(row.description)]


def _rows(session: KaggleSession) -> Iterator[Submission]:
    for number in range(1, _MOST_PAGES + 1):
        rows = _page(session, _PAGE, number)
        yield from rows
        if not rows:
            return


def _page(session: KaggleSession, size: int, number: int) -> list[Submission]:
    listed = session.api.competition_submissions(COMPETITION, page_size=size, page_number=number)
    return [
        Submission(
            ref=item.ref,
            submitted_at=item.date,
            file_name=_text(item.file_name),
            description=_text(item.description),
            status=item.status.name.lower(),
            public_score=float(item.public_score) if item.public_score else None,
            private_score=float(item.private_score) if item.private_score else None,
            error=_text(item.error_description),
            size_bytes=item.total_bytes,
        )
        for item in listed or []
        if item is not None
    ]


def _text(text: str) -> str:
    return one_line(text, longest=_LONGEST_TEXT)
