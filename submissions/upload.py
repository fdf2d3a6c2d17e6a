"""Upload a submission once, and list the submissions of the account.

The list on Kaggle shows which files were sent, so no local record is needed to send a file once.
"""

from collections.abc import Iterator
from pathlib import Path

from common.credentials import one_line
from common.errors import PipelineError
from common.http import RetryPolicy
from common.kaggle import POLICY, KaggleSession, ask, kaggle_session, send_once, upload_file
from submissions.sent import Submission, digest_of, is_of

COMPETITION = "predict-ai-model-runtime"
_IN_DOUBT = (
    "it may have arrived: see `fast-or-slow submission list`; the same command reads this list "
    "before it sends a file"
)
_MAX_TEXT_CHARACTERS = 1000
# The limit of 2,000 submissions is enough for years.
_PAGE, _MAX_PAGES = 100, 20


def submit(
    path: Path, message: str, *, force: bool = False, policy: RetryPolicy = POLICY
) -> Submission:
    """Upload a checked file, unless Kaggle lists it already.

    A file is not sent twice: if the answer is lost, the list of Kaggle shows whether it arrived.
    """
    digest = digest_of(path)
    with kaggle_session(f"upload {path} to {COMPETITION}", policy) as session:
        earlier = ask(session, lambda: _with_tag(session, digest))
        if earlier and not force:
            first = earlier[0]
            when = f" at {first.submitted_at:%Y-%m-%dT%H:%M:%SZ}" if first.submitted_at else ""
            raise PipelineError(
                f"{path}: the same file was sent{when} as submission {first.ref} ({first.status}); "
                "nothing was sent; `submission list` shows its score, --force sends it again"
            )
        nth = f" #{len(earlier) + 1}" if earlier else ""
        tag = f"[sha256:{digest}{nth}]"
        description = f"{_text(message)} {tag}".strip()
        names = {"competitionName": COMPETITION, "fileName": path.name}
        token = upload_file(session, path, "competitions", "start_submission_upload", names)

        def send() -> Submission:
            facts = {"blobFileTokens": token, "submissionDescription": description}
            request = {"competitionName": COMPETITION, **facts}
            answer = session.call("competitions", "create_submission", request)
            if not int(answer.ref):
                reply = one_line(answer.message) or "nothing"
                raise ValueError(f"expected the new submission's number, Kaggle says: {reply}")
            return Submission(int(answer.ref), path.name, description, path.stat().st_size)

        def find_new() -> Submission | None:
            refs = {row.ref for row in earlier}
            return next((row for row in _with_tag(session, digest) if row.ref not in refs), None)

        return send_once(session, send, find_new, _IN_DOUBT)


def list_submissions(limit: int) -> list[Submission]:
    """Return submissions of the account, newest first."""
    with kaggle_session(f"list submissions of {COMPETITION}") as session:
        return ask(session, lambda: _page(session, limit, 1))


def _with_tag(session: KaggleSession, digest: str) -> list[Submission]:
    return [row for row in _rows(session) if is_of(row, digest)]


def _rows(session: KaggleSession) -> Iterator[Submission]:
    for number in range(1, _MAX_PAGES + 1):
        rows = _page(session, _PAGE, number)
        yield from rows
        if not rows:
            return


def _page(session: KaggleSession, size: int, number: int) -> list[Submission]:
    request = {"competitionName": COMPETITION, "pageSize": size, "page": number}
    items = session.call("competitions", "list_submissions", request).submissions
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
        for item in items or []
    ]


def _text(text: str) -> str:
    return one_line(text, longest=_MAX_TEXT_CHARACTERS)
