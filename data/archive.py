"""Read npz archives that may be damaged or hostile: every fault becomes one clear line.

An npz file is a zip archive of .npy members. What `np.load` leaves open is checked here: local
headers against the central directory, no bytes between members, sizes against shapes before
anything is allocated, no pickled objects, and the checksum of every member that is read.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from data.errors import PipelineError

LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
UNKNOWN_32 = 0xFFFFFFFF
DESCRIPTOR_FLAG = 0x08
# Deflate cannot shrink anything by more than this factor (zlib's technical notes).
MAX_DEFLATE_RATIO = 1032
CHUNK_BYTES = 4 << 20
READ_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)


@dataclass(frozen=True)
class ArrayHeader:
    """What a .npy member says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool


class Archive:
    """An open npz file; use it as a context manager.

    Raises:
        PipelineError: not a zip archive, or its structure is damaged; the line names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (
            zipfile.BadZipFile,
            EOFError,
            ValueError,
            NotImplementedError,
            struct.error,
        ) as error:
            raise PipelineError(
                f"{path}: not a whole npz file ({error}); expected a zip archive of arrays"
            ) from error
        except OSError as error:
            raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
        try:
            self._members = self._check_structure()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the one-line error that names this file and `key`."""
        raise PipelineError(f"{self.path}: key '{key}': {problem}")

    def require(self, keys: tuple[str, ...]) -> None:
        """Check that every key is there.

        Raises:
            PipelineError: names the first missing key and what the file holds.
        """
        for key in keys:
            if key not in self._members:
                held = ", ".join(sorted(self._members)) or "nothing"
                raise PipelineError(
                    f"{self.path}: key '{key}' is missing; expected {', '.join(keys)}; holds {held}"
                )

    def array(
        self, key: str, *, dtype: type[np.generic], shape: tuple[int | None, ...]
    ) -> NDArray[Any]:
        """Read one member whole.

        Args:
            key: the array's name.
            dtype: the exact dtype that is expected.
            shape: expected lengths by axis, None where any length will do.

        Raises:
            PipelineError: missing, damaged, pickled, or of another dtype or shape.
        """
        with self._open(key, dtype, shape) as (stream, header):
            content = b"".join(self._chunks(key, stream, header, CHUNK_BYTES))
        values = np.frombuffer(content, dtype=header.dtype)
        # The dataset's own edge_index is stored column by column in some files.
        return values.reshape(header.shape, order="F" if header.by_column else "C")

    def header(
        self, key: str, *, dtype: type[np.generic], shape: tuple[int | None, ...]
    ) -> ArrayHeader:
        """Read only a member's shape and dtype, checked as in `array`."""
        with self._open(key, dtype, shape) as (_, header):
            return header

    def row_chunks(
        self,
        key: str,
        *,
        dtype: type[np.generic],
        shape: tuple[int | None, ...],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[NDArray[Any]]:
        """Yield a member's rows in order, some at a time, without inflating it whole.

        Each chunk has the member's shape with fewer rows; memory stays near `chunk_bytes`.
        """
        with self._open(key, dtype, shape) as (stream, header):
            if header.by_column and len(header.shape) > 1:
                self.fail(key, "is stored column by column; expected row by row (C order)")
            row_bytes = int(np.prod(header.shape[1:], dtype=np.int64)) * header.dtype.itemsize
            step = max(1, chunk_bytes // max(1, row_bytes)) * row_bytes
            for content in self._chunks(key, stream, header, step):
                yield np.frombuffer(content, dtype=header.dtype).reshape(-1, *header.shape[1:])

    def _chunks(
        self, key: str, stream: IO[bytes], header: ArrayHeader, step: int
    ) -> Iterator[bytes]:
        """Yield the member's bytes, `step` at a time; its end and checksum are checked."""
        left = int(np.prod(header.shape, dtype=np.int64)) * header.dtype.itemsize
        try:
            while left:
                content = stream.read(min(step, left))
                if len(content) < min(step, left):
                    self.fail(key, "ends too early; the file is truncated or damaged")
                left -= len(content)
                yield content
            if stream.read(1):  # reading on to the end is what verifies the checksum
                self.fail(key, "holds more bytes than its shape says")
        except READ_FAULTS as error:
            self.fail(key, f"damaged: {error}")

    def _open(self, key: str, dtype: type[np.generic], shape: tuple[int | None, ...]) -> "_Member":
        self.require((key,))
        info = self._members[key]
        try:
            stream = self._zip.open(info)
        except READ_FAULTS as error:
            self.fail(key, f"damaged: {error}")
        try:
            header = self._read_header(key, stream, info)
            self._check_header(key, header, dtype, shape)
        except BaseException:
            stream.close()
            raise
        return _Member(stream, header)

    def _read_header(self, key: str, stream: IO[bytes], info: zipfile.ZipInfo) -> ArrayHeader:
        try:
            version = npy_format.read_magic(stream)
            read = {
                (1, 0): npy_format.read_array_header_1_0,
                (2, 0): npy_format.read_array_header_2_0,
            }.get(version)
            if read is None:
                self.fail(key, f"is of npy version {version}; expected 1.0 or 2.0")
            shape, fortran_order, dtype = read(stream)
        except (*READ_FAULTS, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            self.fail(key, f"no readable npy header: {str(error).splitlines()[0]}")
        if dtype.hasobject:
            self.fail(key, "is an object array (pickle); expected plain numbers")
        if any(length < 0 for length in shape):
            self.fail(key, f"has shape {shape}; expected no negative length")
        n_values = 1
        for length in shape:
            n_values *= length
        stored = n_values * dtype.itemsize
        if stored + stream.tell() != info.file_size:
            self.fail(
                key,
                f"has shape {shape}, {stored} bytes, but holds {info.file_size - stream.tell()}",
            )
        return ArrayHeader(shape, dtype, by_column=fortran_order)

    def _check_header(
        self,
        key: str,
        header: ArrayHeader,
        dtype: type[np.generic],
        shape: tuple[int | None, ...],
    ) -> None:
        if header.dtype != np.dtype(dtype):
            self.fail(key, f"has dtype {header.dtype}; expected {np.dtype(dtype).name}")
        fits = len(header.shape) == len(shape) and all(
            want is None or want == length for want, length in zip(shape, header.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            self.fail(key, f"has shape {header.shape}; expected ({wanted})")

    def _check_structure(self) -> dict[str, zipfile.ZipInfo]:
        """Compare local headers with the central directory; return the arrays by key."""
        members: dict[str, zipfile.ZipInfo] = {}
        expected_offset = 0
        with self.path.open("rb") as raw:
            for info in sorted(self._zip.infolist(), key=lambda info: info.header_offset):
                key = info.filename.removesuffix(".npy")
                if key == info.filename or key in members:
                    self.fail(info.filename, "is not an array of its own; expected each key once")
                if info.header_offset != expected_offset:
                    self.fail(key, f"starts at byte {info.header_offset}, not {expected_offset}")
                expected_offset = self._check_local_header(raw, key, info)
                self._check_sizes(key, info)
                members[key] = info
        if expected_offset != self._zip.start_dir:
            raise PipelineError(f"{self.path}: bytes between the arrays and the index; damaged")
        return members

    def _check_sizes(self, key: str, info: zipfile.ZipInfo) -> None:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            self.fail(key, f"is packed by method {info.compress_type}; expected stored or deflate")
        if info.flag_bits & ~(DESCRIPTOR_FLAG | 0x0806):
            self.fail(key, "is encrypted or patched; expected a plain archive")
        if info.file_size > MAX_DEFLATE_RATIO * info.compress_size + 64:
            self.fail(key, f"claims {info.file_size} bytes, more than its data can hold")

    def _check_local_header(self, raw: IO[bytes], key: str, info: zipfile.ZipInfo) -> int:
        """Check one local header; return the offset at which the next must stand."""
        raw.seek(info.header_offset)
        head = raw.read(LOCAL_HEADER.size)
        if len(head) < LOCAL_HEADER.size:
            self.fail(key, "has no header of its own; the file is truncated or damaged")
        (_, version, flags, method, time, date, crc, packed, size, n_name, n_extra) = (
            LOCAL_HEADER.unpack(head)
        )
        streamed = bool(info.flag_bits & DESCRIPTOR_FLAG)
        extra = raw.read(n_name + n_extra)[n_name:]
        wide_sizes = struct.pack("<HHQQ", 1, 16, info.file_size, info.compress_size)
        year, month, day, hour, minute, second = info.date_time
        want_date = (year - 1980) << 9 | month << 5 | day
        want_time = hour << 11 | minute << 5 | second // 2
        agrees = (
            flags == info.flag_bits
            and method == info.compress_type
            and version == info.extract_version
            and (time, date) == (want_time, want_date)
            and crc in ((0, info.CRC) if streamed else (info.CRC,))
            and packed in (info.compress_size, UNKNOWN_32, *((0,) if streamed else ()))
            and size in (info.file_size, UNKNOWN_32, *((0,) if streamed else ()))
            and (size != UNKNOWN_32 or streamed or wide_sizes in extra)
        )
        if not agrees:
            self.fail(key, "the header and the archive's index disagree; the file is damaged")
        end = info.header_offset + LOCAL_HEADER.size + n_name + n_extra + info.compress_size
        return end + (self._descriptor_bytes(raw, end, info) if streamed else 0)

    def _descriptor_bytes(self, raw: IO[bytes], offset: int, info: zipfile.ZipInfo) -> int:
        """Return the length of the record behind a streamed member: 12 to 24 bytes."""
        raw.seek(offset)
        record = raw.read(24)
        signature = 4 if record[:4] == b"PK\x07\x08" else 0
        wide = struct.pack("<QQ", info.compress_size, info.file_size)
        return signature + 4 + (16 if record[signature + 4 : signature + 20] == wide else 8)


class _Member:
    """An open member and its header."""

    def __init__(self, stream: IO[bytes], header: ArrayHeader) -> None:
        self._stream = stream
        self._header = header

    def __enter__(self) -> tuple[IO[bytes], ArrayHeader]:
        return self._stream, self._header

    def __exit__(self, *_: object) -> None:
        self._stream.close()
