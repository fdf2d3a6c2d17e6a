"""One process at a time: a lock on a file, which ends with the process that holds it."""

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

    Raises:
        PipelineError: the lock's file cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            on_wait()
            lock.acquire()
    except OSError as error:
        where = path.parent  # what a user knows of
        raise PipelineError(f"{where}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs; ends with the process.

    What a killed process left half-written in it is removed.

    Raises:
        UsageError: another process works in it.
    """

    def refuse() -> None:
        raise UsageError(f"{folder}: another process works in it; wait for it to end")

    with locked(folder / LOCK, on_wait=refuse):
        sweep(folder)
        yield
