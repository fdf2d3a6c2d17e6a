"""One process at a time: a lock on a file, which ends with the process that holds it."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import sweep
from common.errors import PipelineError, UsageError

LOCK = ".lock"


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of `path` while the block runs; wait for whoever holds it.

    Parent folders are made. It excludes the threads of one process as well.

    Args:
        path: the lock's file.
        on_wait: called once if somebody else holds it.

    Raises:
        PipelineError: the lock's file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        where = path.parent  # what a user knows of
        raise PipelineError(f"{where}: cannot be written: {error.strerror or error}") from error
    with lock:
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs; ends with the process.

    What a killed process left half-written in it is removed.

    Raises:
        UsageError: another process works in it.
    """
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder}: another process works in it; wait for it to end") from None
        sweep(folder)
        yield
