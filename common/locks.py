"""One process at a time: a lock on a file, which ends with the process that holds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import sweep
from common.errors import PipelineError, UsageError

LOCK = ".lock"


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of `path` while the block runs.

    Parent folders are made. It excludes the threads of one process as well.

    Raises:
        UsageError: another process holds it, and is not to be waited for.
        PipelineError: the lock's file cannot be written.
    """
    from filelock import FileLock

    folder = path.parent  # what a user knows of
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(path).acquire(blocking=wait)
    except TimeoutError:
        raise UsageError(f"{folder}: another process works in it; wait for it to end") from None
    except OSError as error:
        raise PipelineError(f"{folder}: cannot be written: {error.strerror or error}") from error
    with held:
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs; ends with the process.

    What a killed process left half-written in it is removed.

    Raises:
        UsageError: another process works in it.
    """
    with locked(folder / LOCK, wait=False):
        sweep(folder)
        yield
