"""Find submissions in Kaggle's list again, and keep the ledger up to it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from common.errors import PipelineError
from submissions.upload.client import SubmissionRow, list_submissions
from submissions.upload.ledger import PENDING, SENDING, Entry, change_ledger, nth_of, tag_of

_PAGE = 100
_MOST_PAGES = 20  # 2000 submissions: years of them


def find_listed(entry: Entry) -> SubmissionRow | None:
    """Look for an entry's submission in Kaggle's list, page by page.

    Raises:
        ClientError: the list cannot be read.
        PipelineError: a submission has the entry's marker but another size.
    """
    for rows in _pages(entry.competition):
        row = matching(entry, rows)
        if row is not None:
            return row
    return None


def find_tagged(sha256: str, competition: str) -> list[tuple[str, SubmissionRow]]:
    """Find all submissions of a file in Kaggle's list, oldest first, each with its tag.

    Raises:
        ClientError: the list cannot be read.
    """
    found: dict[str, SubmissionRow] = {}
    for rows in _pages(competition):
        for row in rows:
            tag = tag_of(sha256).search(row.description)
            if tag:
                found.setdefault(tag[0], row)
    return sorted(found.items(), key=lambda pair: nth_of(pair[0]))


def _pages(competition: str) -> Iterator[list[SubmissionRow]]:
    """Yield Kaggle's list page by page.

    Raises:
        ClientError: the list cannot be read.
    """
    seen: set[int] = set()
    for page in range(1, _MOST_PAGES + 1):
        rows = list_submissions(competition=competition, limit=_PAGE, page=page)
        yield rows
        # A server may have pages of its own size, or know of no pages.
        if seen.issuperset(row.ref for row in rows):
            break
        seen.update(row.ref for row in rows)


def matching(entry: Entry, rows: Iterable[SubmissionRow]) -> SubmissionRow | None:
    """Return the row of an entry: by Kaggle's number if it is known, else by marker and size.

    Raises:
        PipelineError: a row has the entry's marker but another size.
    """
    for row in rows:
        if entry.ref is not None:
            if row.ref == entry.ref:
                return row
        elif entry.marker in row.description:
            if row.size_bytes not in (0, entry.size_bytes):  # 0: the list does not say
                raise PipelineError(
                    f"{entry.file}: Kaggle lists submission {row.ref} with this file's tag "
                    f"{entry.marker}, but with {row.size_bytes} bytes where {entry.size_bytes} "
                    "were expected; nothing was sent; give the file another content or look at "
                    "the competition's page"
                )
            return row
    return None


def as_listed(entry: Entry, row: SubmissionRow) -> Entry:
    """Return the entry with what Kaggle's list says of it."""
    facts = {
        "ref": row.ref or None,
        "status": row.status,
        "public_score": row.public_score,
        "private_score": row.private_score,
        "error": row.error or None,
    }
    return entry.model_copy(update=facts)


def update_open(ledger: Path, rows: Sequence[SubmissionRow], competition: str) -> None:
    """Complete the ledger's entries that were not scored yet, as far as `rows` tell.

    Raises:
        PipelineError: the ledger is damaged or cannot be written, or a row contradicts it.
    """

    def updated(entry: Entry) -> Entry:
        if entry.status not in (SENDING, PENDING) or entry.competition != competition:
            return entry
        row = matching(entry, rows)
        return entry if row is None else as_listed(entry, row)

    if ledger.exists():
        change_ledger(ledger, lambda entries: map(updated, entries))
