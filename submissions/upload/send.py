"""Send a submission once: what is known to have arrived is never sent a second time.

What remains possible: a server that answers HTTP 500 or 503 although it has made the submission,
and lists it only after all looks of `LOOK_AFTER_S`, is sent it again. Two entries of Kaggle's list
then have one tag.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from common.errors import PipelineError
from common.kaggle.send_once import LOOK_AFTER_S
from common.kaggle.session import redact
from common.locks import locked
from common.retry import RetryPolicy
from submissions.upload.client import COMPETITION, SubmissionRow, upload
from submissions.upload.faults import ClientError
from submissions.upload.ledger import (
    FAILED,
    PENDING,
    SENDING,
    Entry,
    hash_of,
    marker_of,
    now_text,
    nth_of,
    put_entry,
    read_ledger,
)
from submissions.upload.listed import as_listed, find_listed, find_tagged, matching
from submissions.upload.try_again import read_patiently, wait_or_raise

POLICY = RetryPolicy()


@dataclass(frozen=True)
class Sending:
    """A file to be sent, which the caller has checked, and how.

    Attributes:
        path: the submission.
        message: the description, without the marker.
        ledger: see `submissions.upload.ledger`.
        recipe: that the file was made with, or None.
        revision: of the code that made it, or None.
        force: send a file that was sent before.
        competition: its slug.
        policy: how often to try, and for how long to wait in between.
        say: told about waits and retries.
        show_progress: draw a progress bar on standard error.
    """

    path: Path
    message: str
    ledger: Path
    recipe: str | None = None
    revision: str | None = None
    force: bool = False
    competition: str = COMPETITION
    policy: RetryPolicy = POLICY
    say: Callable[[str], None] = lambda line: None
    show_progress: bool = False


def send_once(job: Sending) -> Entry:
    """Send the file unless Kaggle has it, and keep the ledger.

    An earlier try whose end is not known is looked up in Kaggle's list first; if it has arrived,
    that is the result, and nothing is sent. What the ledger knows nothing of is looked up by the
    file's tag; if Kaggle has it, that is noted, and refused like a file that was sent from here.

    Returns:
        The ledger's entry of the submission, which has arrived.

    Raises:
        PipelineError: the file was sent before and `force` is off; Kaggle refused it; it may or may
            not have arrived; the ledger is damaged or cannot be written.
    """
    with locked(
        # One at a time: what is "sending" while this lock is free was left by a killed process.
        job.ledger.with_name(f".{job.ledger.name}.sending.lock"),
        on_wait=lambda: job.say(f"{job.ledger}: another upload is under way; waiting for its end"),
    ):
        sha256 = hash_of(job.path)
        before = [
            _resolved(job, entry)
            for entry in read_ledger(job.ledger)
            if (entry.sha256, entry.competition) == (sha256, job.competition)
        ]
        for entry, was_open in before:
            if was_open and entry.arrived and not job.force:
                job.say(f"{job.path}: an earlier try arrived as submission {entry.ref}; not resent")
                return entry
        arrived = [entry for entry, _ in before if entry.arrived]
        if not arrived or job.force:
            arrived += _sent_elsewhere(job, sha256, {entry.marker for entry in arrived})
        if arrived and not job.force:
            raise PipelineError(_sent_before(job.path, arrived[-1]))
        nth = max((nth_of(entry.marker) for entry in arrived), default=0) + 1
        entry = _new_entry(job, sha256, nth=nth)
        put_entry(job.ledger, entry)
        return _deliver(job, entry)


def _resolved(job: Sending, entry: Entry) -> tuple[Entry, bool]:
    """Learn what became of an entry whose end is not known; tell whether it was such a one."""
    if entry.status != SENDING:
        return entry, False
    job.say(f"{job.path}: the end of an earlier try is not known; looking in Kaggle's list")
    row = _look(job, entry)
    return (_keep(job, as_listed(entry, row)) if row else entry), True


def _sent_elsewhere(job: Sending, sha256: str, known: Container[str]) -> list[Entry]:
    """Note what Kaggle lists of the file and the ledger does not know: a lost or other ledger.

    Raises:
        PipelineError: the list cannot be read, so that nothing may be sent; or it has the file's
            tag with another size.
    """
    found = read_patiently(
        lambda: find_tagged(sha256, job.competition),
        what=str(job.path),
        policy=job.policy,
        say=job.say,
        added="nothing was sent",
    )
    entries = []
    for marker, row in found:
        if marker not in known:
            entry = _new_entry(job, sha256, nth=nth_of(marker))
            message = row.description.replace(marker, "").strip()
            time = f"{row.submitted_at:%Y-%m-%dT%H:%M:%SZ}" if row.submitted_at else entry.time
            entry = entry.model_copy(update={"message": message, "time": time})
            matching(entry, [row])
            entries.append(_keep(job, as_listed(entry, row)))
    return entries


def _new_entry(job: Sending, sha256: str, *, nth: int) -> Entry:
    return Entry(
        sha256=sha256,
        size_bytes=job.path.stat().st_size,
        file=_plain(job.path.name),
        competition=job.competition,
        recipe=job.recipe,
        revision=job.revision,
        message=_plain(redact(job.message)),
        marker=marker_of(sha256, nth),
        ref=None,
        time=now_text(),
        status=SENDING,
        public_score=None,
        private_score=None,
        error=None,
    )


def _plain(text: str) -> str:
    """Return the text on one line and in valid Unicode, which arguments need not be."""
    return " ".join(text.encode(errors="replace").decode().split())


def _deliver(job: Sending, entry: Entry) -> Entry:
    """Try until the file has arrived, as often as is safe and the policy allows."""
    description = f"{entry.message} {entry.marker}".lstrip()
    failures = 0
    while True:
        try:
            answer = upload(
                job.path,
                description,
                competition=job.competition,
                show_progress=job.show_progress,
            )
        except ClientError as fault:
            failures += 1
            row = _found_after(job, entry, fault)
            if row is not None:
                return _keep(job, as_listed(entry, row))
            _wait_or_give_up(job, entry, fault, failures)
        else:
            arrived = {"ref": answer.ref or None, "status": PENDING, "error": None}
            return _keep(job, entry.model_copy(update=arrived))


def _found_after(job: Sending, entry: Entry, fault: ClientError) -> SubmissionRow | None:
    """Look for the submission where the fault leaves open whether it has arrived.

    Raises:
        PipelineError: the list cannot be read either, so that nothing is known.
    """
    if not fault.outcome.may_have_arrived:
        return None
    job.say(f"{job.path}: no clear answer; looking in Kaggle's list whether it has arrived")
    try:
        return _look(job, entry)
    except PipelineError as other:
        _keep(job, entry.model_copy(update={"error": str(fault)}))
        raise PipelineError(f"{fault}; {other}") from None


def _wait_or_give_up(job: Sending, entry: Entry, fault: ClientError, failures: int) -> None:
    """Wait for the next try.

    Raises:
        PipelineError: another try would not help or not be safe, or the tries are used up.
    """
    try:
        wait_or_raise(fault, failures, what=str(job.path), policy=job.policy, say=job.say)
    except PipelineError:
        status = SENDING if fault.outcome.may_have_arrived else FAILED
        _keep(job, entry.model_copy(update={"status": status, "error": str(fault)}))
        raise


def _look(job: Sending, entry: Entry) -> SubmissionRow | None:
    """Look for an entry's submission several times; None if it is not there the last time.

    Raises:
        PipelineError: the last look failed, or one that no other could mend.
    """
    last = len(LOOK_AFTER_S) - 1
    for look, pause_s in enumerate(LOOK_AFTER_S):
        job.policy.sleep(pause_s)
        try:
            row = find_listed(entry)
        except ClientError as fault:
            if look == last or not fault.outcome.try_again:
                raise
        else:
            if row is not None:
                return row
    return None


def _keep(job: Sending, entry: Entry) -> Entry:
    put_entry(job.ledger, entry)
    return entry


def _sent_before(path: Path, entry: Entry) -> str:
    number = f"submission {entry.ref}" if entry.ref else "a submission without a number"
    return (
        f"{path}: the same file was sent at {entry.time} as {number} ({entry.status}); nothing was "
        "sent; `submission list` shows its score, --force sends it again"
    )
