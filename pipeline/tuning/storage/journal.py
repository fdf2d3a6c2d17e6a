"""A tuning journal: one file that several workers on one disk write to, each in its turn.

All locks here are flock's, which the system drops when a process ends, however it ends. (Optuna's
own locks are files that a killed worker leaves behind: the others wait for half a minute, then take
the lock by force, and two may do so at once.) Beside JOURNAL lie:

    JOURNAL.writing        held while a line is written
    JOURNAL.claims         held while a worker takes its next trial
    JOURNAL.workers/NAME   held by the worker NAME for as long as it lives
"""

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from common.errors import PipelineError

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

JOURNAL_START = b'{"op_code"'
BLOCK = 1 << 16  # bytes that are looked through at a time, from the end, for the last whole line


class JournalLock:
    """The right to write to a journal, with all unfinished lines cut off: Optuna's `lock_obj`.

    Who has the lock is the only writer, so that a last line without its end was left by a worker
    that was killed; a line written after it would be unreadable.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._held: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for the lock, then mend the journal."""
        self._held = beside(self._journal, "writing").open("ab")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        mend(self._journal)
        return True

    def release(self) -> None:
        """Let the next one write."""
        assert self._held is not None
        self._held.close()


def journal_storage(journal: Path) -> "JournalStorage":
    """Open a journal, or begin one.

    Raises:
        PipelineError: it cannot be written, or is something else than a journal.
    """
    import optuna

    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("ab+") as file:
            file.seek(0)
            start = file.read(len(JOURNAL_START))
    except OSError as error:
        raise PipelineError(f"{journal}: cannot be written: {error.strerror or error}") from error
    refusal = f"{journal}: not a tuning journal; choose another --storage"
    if not JOURNAL_START.startswith(start):
        raise PipelineError(refusal)
    lock = JournalLock(journal)
    backend = optuna.storages.journal.JournalFileBackend(str(journal), lock_obj=lock)
    try:
        return optuna.storages.JournalStorage(backend)
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(refusal) from error


def beside(journal: Path, suffix: str) -> Path:
    """Return the path of one of the journal's own files."""
    return journal.with_name(f"{journal.name}.{suffix}")


def mend(journal: Path) -> None:
    """Cut off a last line that has no end. Only for who may write."""
    with journal.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end:
            begin = max(0, end - BLOCK)
            file.seek(begin)
            whole = file.read(end - begin).rfind(b"\n") + 1
            end = begin + whole
            if whole:
                break
        if end < size:
            file.truncate(end)


@contextmanager
def claims_of(journal: Path) -> Iterator[None]:
    """Wait until no other worker is taking a trial, and keep others from it."""
    with beside(journal, "claims").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def living_worker(journal: Path) -> Iterator[str]:
    """Yield a new worker's name, which `lives` until the block, or the process, ends."""
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    path = _worker_file(journal, name)
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield name
        finally:
            path.unlink(missing_ok=True)


def lives(journal: Path, worker: str) -> bool:
    """Tell whether a worker's process is alive, on whichever machine."""
    path = _worker_file(journal, worker)
    try:
        with path.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def ended_in_order(journal: Path, worker: str) -> bool:
    """Tell whether a worker took its file with it, which a killed one cannot.

    Ask before `lives`, which tidies up after the killed.
    """
    return not _worker_file(journal, worker).exists()


def _worker_file(journal: Path, worker: str) -> Path:
    return beside(journal, "workers") / worker
