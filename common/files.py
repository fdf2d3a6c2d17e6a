"""Files that are either whole or absent, with checksums, and folders for one process at a time.

A file is written under a temporary name, then renamed; a lock ends with the process that holds it.

A file of any format may have its checksum inside, so that a flipped bit is noticed. It is written
with the text `UNSEALED`, as a value of its header, footer or last key. Then the zeros are replaced
by the CRC-32 of the whole file as it was.
"""

import errno
import importlib
import io
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from common.errors import PipelineError, UsageError
from common.progress import log

if TYPE_CHECKING:
    import polars as pl

LOCK = ".lock"
SILENT_S, RETRY_S = 5.0, 0.5  # of a wait for a lock
TEMPORARY = ".*.tmp"  # what a killed process may leave
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)  # of the file system

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()

# Three times as fast as zlib, which takes its place where it is missing.
FAST_ZLIB = importlib.import_module("zlib_ng.zlib_ng" if find_spec("zlib_ng") else "zlib")


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


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock while the block runs; processes of all hosts respect it, and threads as well.

    The system frees the lock of a dead process.

    Args:
        path: File of the lock, in the folder that it protects. It may stay afterwards.
        wait: Whether to wait for another process. A line says so after some seconds.

    Raises:
        UsageError: Another process holds the lock, and `wait` is false.
        PipelineError: The lock's file cannot be written.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            held = lock.acquire(timeout=SILENT_S if wait else RETRY_S)
        except TimeoutError:
            message = (
                f"{path.parent}: another process works in it (lock {path}); wait for it to end"
            )
            if not wait:
                raise UsageError(message) from None
            log.info(f"note: {message}")
            held = lock.acquire()
    except OSError as error:
        reason = error.strerror or error
        raise PipelineError(f"{path.parent}: cannot be written: {reason}") from error
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


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of some bytes; 8 hex digits."""
    return f"{FAST_ZLIB.crc32(content):08x}"


def write_sealed(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write content with its checksum in the place of `UNSEALED`; see `atomic_path`."""
    start, whole = content.rfind(MARK) + len(MARK), memoryview(content)
    parts = whole[:start], checksum_of(content).encode(), whole[start + len(ZEROS) :]
    with atomic_path(path, durable=durable) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it may hold; PipelineError: they differ."""
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(MARK) + len(MARK)
            held = content[start : start + len(ZEROS)]
            if start >= len(MARK) and held != _unsealed_checksum(content, start):
                raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def _unsealed_checksum(content: mmap.mmap, start: int) -> bytes:
    with memoryview(content) as whole, whole[:start] as before, whole[start + len(ZEROS) :] as rest:
        checksum = FAST_ZLIB.crc32(rest, FAST_ZLIB.crc32(ZEROS, FAST_ZLIB.crc32(before)))
    return f"{checksum:08x}".encode()


def write_table(path: Path, table: "pl.DataFrame", **facts: str) -> None:
    """Write a table as parquet with its checksum, whole or not at all; raises as `atomic_path`.

    Args:
        facts: of the table, beside it in the file, where `table_facts` finds them.
    """
    content = io.BytesIO()  # the library has its own idea of a path's encoding
    table.write_parquet(content, metadata={**facts, SEAL_KEY: UNSEALED})
    write_sealed(path, content.getvalue())


def read_table(path: Path, schema: Mapping[str, Any] | None = None) -> "pl.DataFrame":
    """Read a parquet file; PipelineError: it is missing, damaged, or not of these columns."""
    import polars as pl

    check_seal(path, "remove the file, and it is made again")
    try:
        table = pl.read_parquet(path.read_bytes())
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first = (str(error).splitlines() or [""])[0]
        raise PipelineError(f"{path}: cannot be read: {first}") from error
    if schema is not None and dict(table.schema) != schema:
        columns = ", ".join(table.columns)
        raise PipelineError(f"{path}: has columns {columns}; expected {', '.join(schema)}")
    return table


def table_facts(path: Path) -> dict[str, str]:
    """Return what `write_table` wrote beside a table that can be read; {} if nothing."""
    import polars as pl

    facts = pl.read_parquet_metadata(path.read_bytes())
    return {key: value for key, value in facts.items() if key not in (SEAL_KEY, "ARROW:schema")}
