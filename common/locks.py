"""One process at a time: a lock on a file, which ends with the process that holds it."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError


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
