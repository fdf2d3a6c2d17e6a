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
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from common.errors import PipelineError, UnreadableError, UsageError, nearest, plain_fault
from common.progress import log

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
LOCK = ".lock"
# A wait for a lock is reported after SILENT_S. Without waiting, a lock is retried for RETRY_S.
SILENT_S, RETRY_S = 5.0, 0.5
TEMPORARY = ".*.tmp"
# A read that fails is tried again after these pauses, because a file server may just restart.
READ_AGAIN_S = (0.1, 1.0)
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}
# Names of a folder that are compared with a wrong name.
MAX_NAMES = 10_000
# A file system that lacks locks, flushes, links or maps answers with one of these. NFS, FUSE, CIFS
# and exFAT do.
_LACKING = {
    *(errno.EINVAL, errno.ENODEV, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP),
    *(errno.EPERM, errno.EXDEV, errno.EMLINK),
}

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()

# zlib-ng is three times as fast as zlib. zlib replaces it if it is not installed.
FAST_ZLIB = importlib.import_module("zlib_ng.zlib_ng" if find_spec("zlib_ng") else "zlib")


@contextmanager
def atomic_path(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it to `path` if the block succeeds.

    A durable file is flushed to the disk before, so it is whole even after a loss of power.
    """
    with _temporary_beside(path) as temporary:
        yield temporary
        if durable:
            flush(temporary)
        temporary.replace(path)


def check_writable(path: Path) -> None:
    """Check that a file can be written, before any work is done for it, and leave no file."""
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
    except OSError as error:
        paths = (None, *map(str, (temporary, *temporary.parents)))
        # An error without a name is one of writing: reads name their file, and the rest is network.
        is_network = error.errno is None or isinstance(error, ConnectionError | TimeoutError)
        if is_network or error.filename not in paths:
            raise
        raise unwritable(path, error) from error
    finally:
        # The file may be renamed or was never created, and then an unlink fails in many ways.
        with suppress(OSError):
            temporary.unlink()


def unwritable(path: Path, error: OSError) -> PipelineError:
    """Return the error of a file or folder that cannot be written."""
    hint = "; expected a file system with locks; put the folder on a local disk" * (
        error.errno in {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
    )
    return PipelineError(f"{path}: cannot be written: {_reason(error)}{hint}")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


@contextmanager
def _where_possible() -> Iterator[None]:
    """End the block quietly if the file system lacks an operation."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LACKING:
            raise


def flush(path: Path) -> None:
    """Write the bytes of a file to the disk, if the file system can flush."""
    with path.open("rb") as file, _where_possible():
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 with Unix line ends, whole or not at all."""
    # UTF-8 cannot encode half a surrogate pair.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def create_text(path: Path, text: str) -> bool:
    """Create a file with a text. If several processes do so at once, one of them succeeds."""
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(text.encode())
        flush(temporary)
        with _where_possible():
            try:
                os.link(temporary, path)
            # FileNotFoundError: the first process has already removed temporary files.
            except (FileExistsError, FileNotFoundError):
                return False
            return True
        temporary.replace(path)
    return True


def sweep(folder: Path, pattern: str = TEMPORARY) -> None:
    """Remove the temporary files of killed processes from a folder that nobody writes to now."""
    for path in list(folder.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            # A file that is open elsewhere may be busy, for example on NFS or CIFS.
            with suppress(OSError):
                path.unlink()


def missing_path(path: Path, expected: str) -> PipelineError:
    """Return the error of a path that is missing or of another kind, with the nearest path."""
    if os.path.exists(path):  # noqa: PTH110 — False for a name that no file can have
        kind = "folder" if path.is_dir() else "file"
        return PipelineError(f"{path}: is a {kind}; expected {expected}")
    place = Path(path.anchor)
    for part in path.relative_to(path.anchor).parts:
        with suppress(OSError):
            entries = islice(place.iterdir(), MAX_NAMES)
            # A folder has no name like that of a file.
            names = [e.name for e in entries if ("." in e.name) == ("." in part)]
            place /= part if (place / part).exists() else nearest(part, names)
    is_near = len(place.parts) == len(path.parts) and place != path
    hint = f"; did you mean {place}?" * is_near
    return PipelineError(f"{path}: no such file or folder; expected {expected}{hint}")


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read bytes. An error raises an UnreadableError, also while reading."""

    def opened() -> "_Reader":
        if not stat.S_ISREG(path.stat().st_mode):
            raise PipelineError(f"{path}: cannot be read: not a regular file")
        return _Reader(path)

    return io.BufferedReader(_patiently(path, opened))


def read_bytes(path: Path) -> bytes:
    """Read a regular file whole. The errors are those of `open_regular`."""
    with open_regular(path) as file:
        return file.read()


class _Reader(io.FileIO):
    """A file whose reads are tried again, and whose errors name the file."""

    def readinto(self, buffer: Any, /) -> int | None:
        return _patiently(self.name, lambda: super(_Reader, self).readinto(buffer))

    def readall(self) -> bytes:
        start = self.tell()

        def read() -> bytes:
            # An earlier try may have read a part.
            self.seek(start)
            return super(_Reader, self).readall()

        return _patiently(self.name, read)


def _patiently(path: object, read: Callable[[], T]) -> T:
    for pause_s in READ_AGAIN_S:
        try:
            return read()
        except OSError as error:
            if error.errno not in _PASSING:
                break
            time.sleep(pause_s)
    try:
        return read()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        fault = PipelineError if is_missing else UnreadableError
        raise fault(f"{path}: cannot be read: {_reason(error)}") from error


def map_file(file: IO[bytes]) -> mmap.mmap:
    """Map an open file to read it, or read it into memory if the file system cannot map."""
    with _where_possible():
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    content = mmap.mmap(-1, file.seek(0, 2))
    file.seek(0)
    content[:] = file.read()
    return content


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a folder for a thread, process or host. Without `wait`, a lock in use is an error.

    The system releases the lock of a dead process. The file of the lock may remain.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=SILENT_S if wait else RETRY_S)
        except TimeoutError:
            fault = f"{path.parent}: another process works in it (lock {path}); wait for it to end"
            if not wait:
                raise UsageError(fault) from None
            log.info(f"note: {fault}")
            lock.acquire()
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        yield
    finally:
        try:
            lock.release()
        except OSError as error:
            raise unwritable(path, error) from error


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process, and remove temporary files of killed processes."""
    with locked(folder / LOCK, wait=False):
        sweep(folder)
        yield


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of bytes as 8 hex digits."""
    return f"{FAST_ZLIB.crc32(content):08x}"


def write_sealed(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write bytes whose last `UNSEALED` is replaced by their checksum, whole or not at all."""
    start, view = content.rfind(MARK) + len(MARK), memoryview(content)
    parts = view[:start], checksum_of(content).encode(), view[start + len(ZEROS) :]
    with atomic_path(path, durable=durable) as temporary, temporary.open("wb") as file:
        file.writelines(parts)


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it contains, if any."""
    with open_regular(path) as file:
        if not file.seek(0, 2):
            return
        with map_file(file) as content:
            start = content.rfind(MARK) + len(MARK)
            checksum = content[start : start + len(ZEROS)]
            if start >= len(MARK) and checksum != _unsealed_checksum(content, start):
                raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def _unsealed_checksum(content: mmap.mmap, start: int) -> bytes:
    with memoryview(content) as view, view[:start] as before, view[start + len(ZEROS) :] as after:
        checksum = FAST_ZLIB.crc32(after, FAST_ZLIB.crc32(ZEROS, FAST_ZLIB.crc32(before)))
    return f"{checksum:08x}".encode()


def write_table(path: Path, table: "pl.DataFrame", **facts: str) -> None:
    """Write a table as parquet with its checksum and with facts that `table_facts` reads."""
    # The library encodes paths in another way than Python, so it writes to memory.
    content = io.BytesIO()
    table.write_parquet(content, metadata={**facts, SEAL_KEY: UNSEALED})
    write_sealed(path, content.getvalue())


def read_table(path: Path, schema: Mapping[str, Any] | None = None) -> "pl.DataFrame":
    """Read a parquet file. None accepts any columns."""
    import polars as pl

    check_seal(path, "remove the file, and it is made again")
    try:
        table = pl.read_parquet(read_bytes(path))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        first_line = str(error).partition("\n")[0]
        raise PipelineError(f"{path}: cannot be read: {first_line}") from error
    if schema is not None and dict(table.schema) != schema:
        columns = ", ".join(table.columns)
        raise PipelineError(f"{path}: has columns {columns}; expected {', '.join(schema)}")
    return table


def table_facts(path: Path) -> dict[str, str]:
    """Return the metadata that `write_table` has written into a readable file."""
    import polars as pl

    facts = pl.read_parquet_metadata(read_bytes(path))
    return {key: value for key, value in facts.items() if key not in (SEAL_KEY, "ARROW:schema")}


def read_json(path: Path, model: type[T], *, expected: str) -> T:
    """Read a JSON file as a pydantic model, or as a type of its fields."""
    from pydantic import TypeAdapter, ValidationError

    with open_regular(path) as file:
        try:
            return TypeAdapter(model).validate_json(file.read().removeprefix(BOM_UTF8))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            where = f"key '{key}'" if key else "content"
            problem = f"{where}: {plain_fault(first)}; expected {expected}"
            raise PipelineError(f"{path}: cannot be read: {problem}") from None
