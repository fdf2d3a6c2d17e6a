"""Atomic files with checksums, and folders for one process at a time.

A file is written under a temporary name, then renamed. A lock ends with its process.

A file of any format may contain its checksum, which detects flipped bits. The writer puts the text
`UNSEALED` into the header, the footer or the last key. Then it replaces the zeros by the CRC-32 of
the file before that replacement.
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
from typing import IO, TYPE_CHECKING, Any, TypeVar

from common.errors import PipelineError, UsageError
from common.progress import log

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
LOCK = ".lock"
# A wait for a lock is reported after SILENT_S. Without waiting, a lock is retried for RETRY_S.
SILENT_S, RETRY_S = 5.0, 0.5
TEMPORARY = ".*.tmp"
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()

# zlib-ng is three times as fast as zlib. zlib replaces it if it is not installed.
FAST_ZLIB = importlib.import_module("zlib_ng.zlib_ng" if find_spec("zlib_ng") else "zlib")


@contextmanager
def atomic_path(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it to `path` if the block succeeds.

    The temporary file is removed if the block raises. Parent folders are created.

    Args:
        path: The file to write.
        durable: Whether to flush the bytes to the disk before the rename. Then the file is whole
            even after a loss of power.

    Raises:
        PipelineError: The folder cannot be written, or the disk is full.
    """
    with _temporary_beside(path) as temporary:
        yield temporary
        if durable:
            _flush(temporary)
        temporary.replace(path)


def check_writable(path: Path) -> None:
    """Check that a file can be written, before any work is done for it. The check leaves no file.

    Args:
        path: The file to write later.

    Raises:
        PipelineError: The path is a folder, or the nearest existing folder cannot be written.
    """
    if path.is_dir():
        raise PipelineError(f"{path}: is a folder; expected the name of a file")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    with _temporary_beside(folder / path.name):
        pass


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a new file in the folder of `path`, and remove it after the block.

    The name is fixed before the file exists, so that no interrupt can leave the file behind.
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
        # The file may be renamed or was never created, and then an unlink fails in many ways.
        with suppress(OSError):
            temporary.unlink()


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(path)
            raise


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 with Unix line ends, whole or not at all.

    Half a surrogate pair, which UTF-8 cannot encode, becomes an escape.
    """
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def create_text(path: Path, text: str) -> bool:
    """Create a file with a text. If several processes do so at once, one of them succeeds.

    Args:
        path: The file to create.
        text: The content, written as UTF-8.

    Returns:
        Whether this call created the file.

    Raises:
        PipelineError: The file cannot be written.
    """
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(text.encode())
        _flush(temporary)
        try:
            os.link(temporary, path)
        # FileNotFoundError: the first process has already removed temporary files.
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            temporary.replace(path)
    return True


def sweep(folder: Path, pattern: str = TEMPORARY) -> None:
    """Remove the temporary files and folders of killed processes.

    Args:
        folder: A folder in which no other process writes now.
        pattern: Glob of the names to remove.
    """
    for path in list(folder.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read bytes.

    Args:
        path: The file.

    Raises:
        PipelineError: The file cannot be opened, or is for example a pipe, which may never end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise PipelineError(f"{path}: cannot be read: not a regular file")
        return path.open("rb")
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder while the block runs. The lock works across threads, processes and hosts.

    The system releases the lock of a dead process.

    Args:
        path: File of the lock, in the folder that it protects. The file may remain afterwards.
        wait: Whether to wait for another process. A line says so after some seconds.

    Raises:
        UsageError: Another process has the lock, and `wait` is false.
        PipelineError: The file of the lock cannot be written.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            acquired = lock.acquire(timeout=SILENT_S if wait else RETRY_S)
        except TimeoutError:
            message = (
                f"{path.parent}: another process works in it (lock {path}); wait for it to end"
            )
            if not wait:
                raise UsageError(message) from None
            log.info(f"note: {message}")
            acquired = lock.acquire()
    except OSError as error:
        reason = error.strerror or error
        raise PipelineError(f"{path.parent}: cannot be written: {reason}") from error
    with acquired:
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process while the block runs.

    Temporary files of killed processes are removed first.

    Args:
        folder: The run folder.

    Raises:
        UsageError: Another process works in the folder.
    """
    with locked(folder / LOCK, wait=False):
        sweep(folder)
        yield


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of bytes as 8 hex digits."""
    return f"{FAST_ZLIB.crc32(content):08x}"


def write_sealed(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write bytes and their checksum, whole or not at all.

    Args:
        path: The file to write.
        content: The content. The checksum replaces the zeros of the last `UNSEALED` in it.
        durable: Whether to flush the bytes to the disk, as in `atomic_path`.

    Raises:
        PipelineError: The file cannot be written.
    """
    start, whole = content.rfind(MARK) + len(MARK), memoryview(content)
    parts = whole[:start], checksum_of(content).encode(), whole[start + len(ZEROS) :]
    with atomic_path(path, durable=durable) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it contains, if any.

    Args:
        path: The file.
        remedy: Advice at the end of the message.

    Raises:
        PipelineError: The checksum differs, or the file cannot be read.
    """
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(MARK) + len(MARK)
            checksum = content[start : start + len(ZEROS)]
            if start >= len(MARK) and checksum != _unsealed_checksum(content, start):
                raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def _unsealed_checksum(content: mmap.mmap, start: int) -> bytes:
    with memoryview(content) as whole, whole[:start] as before, whole[start + len(ZEROS) :] as rest:
        checksum = FAST_ZLIB.crc32(rest, FAST_ZLIB.crc32(ZEROS, FAST_ZLIB.crc32(before)))
    return f"{checksum:08x}".encode()


def write_table(path: Path, table: "pl.DataFrame", **facts: str) -> None:
    """Write a table as parquet with its checksum, whole or not at all.

    Args:
        path: The file to write.
        table: The table.
        facts: Metadata of the file by key, which `table_facts` reads.

    Raises:
        PipelineError: The file cannot be written.
    """
    # The library encodes paths in another way than Python, so it writes to memory.
    content = io.BytesIO()
    table.write_parquet(content, metadata={**facts, SEAL_KEY: UNSEALED})
    write_sealed(path, content.getvalue())


def read_table(path: Path, schema: Mapping[str, Any] | None = None) -> "pl.DataFrame":
    """Read a parquet file.

    Args:
        path: The file.
        schema: Expected type of each column by name. None accepts any columns.

    Raises:
        PipelineError: The file is missing or damaged, or has other columns.
    """
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
    """Return the metadata that `write_table` has written into a readable file."""
    import polars as pl

    facts = pl.read_parquet_metadata(path.read_bytes())
    return {key: value for key, value in facts.items() if key not in (SEAL_KEY, "ARROW:schema")}


def read_json(path: Path, model: type[T], *, expected: str) -> T:
    """Read a JSON file.

    Args:
        path: The file.
        model: Type of the content: a pydantic model, or a type of its fields.
        expected: The content that the file should have, for messages. It may end with advice.

    Raises:
        PipelineError: The file is missing, is not JSON, or does not match the model.
    """
    from pydantic import TypeAdapter, ValidationError

    with open_regular(path) as file:
        try:
            return TypeAdapter(model).validate_json(file.read())
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            where = f"key '{key}'" if key else "content"
            problem = f"{where}: {first['msg']}; expected {expected}"
            raise PipelineError(f"{path}: cannot be read: {problem}") from None
