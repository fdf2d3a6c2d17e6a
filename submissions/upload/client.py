"""One try to send a submission to Kaggle, and the list of what was sent, by Kaggle's own client.

`submissions.upload.send` makes of it a submission that is sent once and no more.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.kaggle.errors import one_line
from common.kaggle.session import kaggle_session, redact
from common.kaggle.timeouts import ANSWER_WITHIN_S, answers_within
from submissions.upload.faults import NOT_SENT, client_faults, was_creating, watched

COMPETITION = "predict-ai-model-runtime"

_IN_DOUBT = (
    "it may have arrived: `python -m pipeline submission list` tells, and the same command again "
    "looks there before it sends anything"
)


@dataclass(frozen=True)
class UploadResult:
    """An accepted submission: Kaggle scores it later, `list_submissions` tells how."""

    competition: str
    path: Path
    size_bytes: int
    message: str  # Kaggle's answer
    ref: int  # Kaggle's number of the submission; 0 if the answer held none


@dataclass(frozen=True)
class SubmissionRow:
    """One submission as Kaggle lists it; a score is None until there is one."""

    ref: int
    submitted_at: datetime | None  # UTC
    file_name: str
    description: str
    status: str  # "pending", "complete" or "error"
    public_score: float | None
    private_score: float | None
    error: str
    size_bytes: int


def upload(
    path: Path, message: str, *, competition: str = COMPETITION, show_progress: bool = False
) -> UploadResult:
    """Send the file, which the caller has checked before, as a submission of `competition`.

    Kaggle's client resumes a dropped transfer of the file by itself, for up to six minutes, and
    asks for the submission itself once (see `_only_once`).

    Args:
        path: the submission.
        message: the description that Kaggle shows beside it.
        competition: the competition's slug.
        show_progress: draw a progress bar on standard error.

    Raises:
        PipelineError: no such file.
        ClientError: missing or refused credentials, rules not accepted, an unknown competition, no
            submission left, a failed transfer; it knows whether the submission may have arrived.
    """
    size_bytes = _size_of(path)
    action = f"upload {path} to {competition}"
    with (
        client_faults() as watch,
        kaggle_session(action, in_doubt=_IN_DOUBT, acts=was_creating) as session,
    ):
        api = _only_once(session.api)
        with watched(watch, creates=True), answers_within(ANSWER_WITHIN_S):
            answer = api.competition_submit(
                str(path), message, competition, quiet=not show_progress
            )
        if answer.message == api.COMPETITION_SUBMIT_UPLOAD_FAILED_MESSAGE:
            watch.outcome = NOT_SENT
            # The client prints why only if the connection failed, not if storage refused.
            why = "the connection was lost" if session.printed.getvalue() else "storage refused it"
            raise PipelineError(
                f"{action}: the file did not arrive whole ({why}); nothing was submitted; try again"
            )
        ref = int(answer.ref)  # the client does not check the types of an answer
        # Accepted submissions have a number; older servers only say so.
        if not ref and not answer.message.lower().startswith("success"):
            said = one_line(answer.message) or "nothing"
            raise PipelineError(
                f"{action}: expected the number of the new submission, Kaggle says: {said}; "
                f"{_IN_DOUBT}"
            )
    return UploadResult(competition, path, size_bytes, answer.message, ref)


def list_submissions(
    *, competition: str = COMPETITION, limit: int = 20, page: int = 1
) -> list[SubmissionRow]:
    """Return up to `limit` submissions of the account, the newest first.

    Args:
        competition: the competition's slug.
        limit: how many, per page.
        page: which page, from 1.

    Raises:
        ClientError: missing or refused credentials, an unknown competition, no connection.
    """
    with client_faults() as watch, kaggle_session(f"list submissions of {competition}") as session:
        with watched(watch, creates=False), answers_within(ANSWER_WITHIN_S):
            listed = session.api.competition_submissions(
                competition, page_size=limit, page_number=page
            )
        return [_row(submission) for submission in listed or [] if submission is not None]


def _only_once(api: Any) -> Any:
    """Take from this client the means to repeat a request by itself.

    As of 2.2.4 it repeats none of those that make a submission, but many others, by the method
    replaced here; a request that is repeated after a lost answer would submit twice.
    """
    api.with_retry = lambda function, *args, **options: function
    return api


def _size_of(path: Path) -> int:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from error
    if not path.is_file() or size_bytes == 0:
        raise PipelineError(f"{path}: expected a submission file with rows; write it first")
    return size_bytes


def _row(submission: Any) -> SubmissionRow:
    return SubmissionRow(
        ref=submission.ref,
        submitted_at=submission.date,
        file_name=submission.file_name,
        description=redact(submission.description),
        status=submission.status.name.lower(),
        public_score=_score(submission.public_score),
        private_score=_score(submission.private_score),
        error=redact(one_line(submission.error_description)),
        size_bytes=submission.total_bytes,
    )


def _score(text: str) -> float | None:
    """Read a score; Kaggle sends it as text, empty while there is none."""
    try:
        score = float(text)
    except (TypeError, ValueError):
        return None
    return score if math.isfinite(score) else None
