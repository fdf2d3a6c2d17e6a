"""Wait for the score of a submission that has arrived."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import PipelineError
from submissions.upload.faults import ClientError
from submissions.upload.ledger import COMPLETE, ERROR, Entry, put_entry
from submissions.upload.listed import as_listed, find_listed


@dataclass(frozen=True)
class Pauses:
    """How often Kaggle is asked; `sleep` and `now` are parameters so that tests need not wait."""

    first_s: float = 3.0
    growth: float = 1.5
    longest_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic


PAUSES = Pauses()


def wait_for_score(
    entry: Entry,
    *,
    timeout_s: float,
    ledger: Path,
    pauses: Pauses = PAUSES,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Entry:
    """Ask for the score, with growing pauses, until Kaggle has judged the submission.

    Args:
        entry: of a submission that has arrived.
        timeout_s: seconds to wait at most.
        ledger: is kept up to date.
        pauses: between two requests.
        progress: told (what, seconds waited, timeout).

    Returns:
        The entry as listed; still "pending" if time is over.

    Raises:
        PipelineError: Kaggle could not score the submission, or its list cannot be read.
    """
    start, pause_s = pauses.now(), pauses.first_s
    while True:
        entry, asked_s = _asked(entry, ledger)
        if entry.status == ERROR:
            why = entry.error or "it does not say why"
            raise PipelineError(f"{_name(entry)}: Kaggle could not score it: {why}")
        waited_s = pauses.now() - start
        if entry.status == COMPLETE or waited_s >= timeout_s:
            return entry
        progress("wait for the score", int(waited_s), int(timeout_s) + 1)
        pauses.sleep(min(max(pause_s, asked_s), timeout_s - waited_s))
        pause_s = min(pause_s * pauses.growth, pauses.longest_s)


def _asked(entry: Entry, ledger: Path) -> tuple[Entry, float]:
    """Ask once; return the entry as it now is, and for how many seconds Kaggle asks to wait.

    Raises:
        PipelineError: the list cannot be read, and another try would not mend it.
    """
    try:
        row = find_listed(entry)
    except ClientError as fault:
        if not fault.outcome.try_again:
            raise PipelineError(f"{_name(entry)} was sent; its score: {fault}") from None
        return entry, fault.outcome.retry_after_s or 0.0
    if row is not None:
        entry = as_listed(entry, row)
        put_entry(ledger, entry)
    return entry, 0.0


def _name(entry: Entry) -> str:
    return f"{entry.file}: submission {entry.ref or entry.marker}"
