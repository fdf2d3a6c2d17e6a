"""Files that are either whole or absent, and folders in which one process works at a time.

A file is written under a temporary name, then renamed; a lock ends with the process that holds it.
"""

import errno
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO

from common.errors import PipelineError, UsageError
from common.progress import log

LOCK = ".lock"
SILENT_S, RETRY_S = 5.0, 0.5  # of a wait for a lock; a dead process's takes two tries to free
TEMPORARY = ".*.tmp"  # what a killed process may leave
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)  # of the file system


@contextmanager
def atomic_path(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it to `path` if the block succeeds.

    The temporary file is removed if the block raises. Parent folders are made.

    Args:
        path: The file to write.
        durable: Whether the bytes are on the disk before the rename, so that the file is whole
            after a loss of power as well. Files that can be made again need not be durable.

    Raises:
        PipelineError: The folder cannot be written, or the disk is full.
    """
    with _temporary_beside(path) as temporary:
        yield temporary
        if durable:
            _flush(temporary)
        temporary.replace(path)


def check_writable(path: Path) -> None:
    """Refuse a place that takes no file, before work is done for it; nothing is left there.

    Raises:
        PipelineError: The place is a folder, or the nearest folder above it cannot be written.
    """
    if path.is_dir():
        raise PipelineError(f"{path}: is a folder; expected the name of a file")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    with _temporary_beside(folder / path.name):
        pass


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a new file in the folder of `path`, that is gone after the block.

    It is named before it is made, so that there is no moment at which an interrupt could leave it.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.open("xb").close()
        yield temporary
    except Exception as error:
        number = getattr(error, "errno", None)
        is_own = getattr(error, "filename", None) in [*map(str, (temporary, *temporary.parents))]
        if number is None or not (is_own or number in _OF_WRITING):
            raise
        raise PipelineError(f"{path}: cannot be written: {os.strerror(number)}") from error
    finally:
        with suppress(OSError):  # renamed, or never made, where an unlink may fail in many ways
            temporary.unlink()


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(path)
            raise


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8 with Unix line ends, whole or not at all.

    Half a surrogate pair, which foreign text may hold and UTF-8 cannot, becomes an escape.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def create_text(path: Path, text: str) -> bool:
    """Write `text` to a new file; tell whether it was not there; raises as `atomic_path`.

    Of several processes that do so at once, one succeeds.
    """
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(text.encode())
        _flush(temporary)
        try:
            os.link(temporary, path)
        except (FileExistsError, FileNotFoundError):  # not found: who was first has swept up
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            temporary.replace(path)
    return True


def sweep(folder: Path, pattern: str = TEMPORARY) -> None:
    """Remove what a killed process left in a folder, where nobody else writes now."""
    for left in list(folder.glob(pattern)):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read; PipelineError: it cannot be, or is, say, a pipe that never ends."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PipelineError(f"{path}: cannot be read: not a regular file")
        return path.open("rb")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


def _note_holder(descriptor: int) -> None:
    with suppress(OSError):  # a full disk keeps nobody from reading
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n{socket.gethostname()}\n".encode())


def _holder(path: Path) -> str:
    try:
        number, host = path.read_text(errors="replace").split()[:2]
        age = timedelta(seconds=max(0, int(time.time() - path.stat().st_mtime)))
    except (OSError, ValueError):  # just freed, or of an older version
        return f"lock {path}"
    # filelock adds a container's namespace to the host, after a question mark.
    return f"process {number} on {host.partition('?')[0]}, lock {path}, {age} old"


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock while the block runs; processes of all hosts respect it, and threads as well.

    The system frees the lock of a dead process. On a file system without flock(2) the lock is the
    file `PATH.owner` instead. It is freed if its process was on this host and is dead.

    Args:
        path: File of the lock, in the folder that it protects. It may stay afterwards.
        wait: Whether to wait for another process. A line names it after some seconds.

    Raises:
        UsageError: Another process holds the lock, and `wait` is false.
        PipelineError: The lock's file cannot be written.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock

    folder = path.parent  # what a user knows of
    try:
        try:
            with _temporary_beside(path) as probe, FileLock(probe, fallback_to_soft=False):
                lock: BaseFileLock = FileLock(path, on_acquired=_note_holder)
        except OSError:  # no flock(2): each file system has another number for this
            lock = SoftFileLock(f"{path}.owner")
        try:
            held = lock.acquire(timeout=SILENT_S if wait else RETRY_S)
        except TimeoutError:
            message = f"{folder}: another process works in it ({_holder(Path(lock.lock_file))})"
            message += "; wait for it to end, or remove the lock if that process is gone"
            if not wait:
                raise UsageError(message) from None
            log.info(f"note: {message}")
            held = lock.acquire()
    except OSError as error:
        raise PipelineError(f"{folder}: cannot be written: {error.strerror or error}") from error
    with held:
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while the block runs; ends with the process.

    What a killed one left half-written is removed. UsageError: another process works in it.
    """
    with locked(folder / LOCK, wait=False):
        sweep(folder)
        yield
