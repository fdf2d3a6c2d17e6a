"""Npz archives. Those to read may be damaged or hostile, and every fault becomes one line.

`zipfile` reads the index, and numpy reads the headers. This module checks the rest: sizes against
shapes before any allocation, no pickled objects, and the checksum of every member. zlib-ng inflates
and checks three times as fast as zlib.

Written archives have identical bytes for identical content.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import DTypeLike, NDArray

from common.errors import PipelineError
from common.files import FAST_ZLIB, atomic_path, open_regular

CHUNK_BYTES = 4 << 20
PACKED_CHUNK_BYTES = 1 << 17
COMPRESSION_LEVEL = 4  # configs shrink about 30-fold, as in the real files
# The largest graph of the dataset has 24 MB of node features; ten times that is no graph.
MAX_ARRAY_BYTES = 256 << 20
HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
MAX_LISTED, MAX_SHOWN, MAX_REASON = 12, 60, 200
# Exceptions of zipfile and of the zlib library for damaged bytes.
NOT_READABLE = (
    *(EOFError, OSError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, FAST_ZLIB.error),
)


def shown(text: object) -> str:
    """Return a name or a reason as printable text of at most MAX_SHOWN characters."""
    line = ascii(str(text))[1:-1]
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"


class ArrayHeader(NamedTuple):
    """The header of a .npy member."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype[Any]


def _with_unit_axes(header: ArrayHeader, shape: tuple[int | None, ...]) -> ArrayHeader:
    """Add the expected axes of length 1. Some programs write (s,) for (1, s)."""
    lengths = iter(header.shape)
    if len(header.shape) != sum(axis != 1 for axis in shape):
        return header
    return header._replace(shape=tuple(1 if axis == 1 else next(lengths) for axis in shape))


class Archive:
    """An open npz file, used as a context manager.

    `file` is the file if it is open already. The archive closes it.
    """

    def __init__(self, path: Path, file: IO[bytes] | None = None) -> None:
        self.path = path
        self._raw = file or open_regular(path)
        try:
            self._zip = zipfile.ZipFile(self._raw)
            self._members = self._checked_index()
        except NOT_READABLE as error:
            self._raw.close()
            reason = "" if str(error) == "File is not a zip file" else f" ({_reason(error)})"
            raise PipelineError(
                f"{path}: not a whole npz file{reason}; expected a zip archive of arrays"
            ) from error
        except PipelineError:
            self._raw.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()

    def _checked_index(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            # Such as .DS_Store and __MACOSX/._node_feat.npy, which macOS adds.
            if not info.filename.endswith(".npy") or "/." in f"/{info.filename}":
                continue
            key = info.filename.removesuffix(".npy")
            if key in members:
                self.fail(key, "occurs twice in the file; expected each key once")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                self.fail(key, f"is packed by method {info.compress_type}; expected deflate")
            members[key] = info
        return members

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def contents(self) -> dict[str, tuple[int, int]]:
        """Return the size in bytes and the CRC-32 of each member by key, from the index."""
        return {key: (info.file_size, info.CRC) for key, info in self._members.items()}

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error that names this file and a key."""
        raise PipelineError(f"{self.path}: key '{shown(key)}': {problem}")

    def require(self, keys: tuple[str, ...]) -> None:
        """Check that members exist."""
        missing = [key for key in keys if key not in self._members]
        if missing:
            present_keys = ", ".join(map(shown, sorted(self._members)[:MAX_LISTED])) or "nothing"
            requirement = f"expected {', '.join(keys)}; holds {present_keys}"
            self.fail(missing[0], f"is missing; {requirement}")

    def array(
        self, key: str, *, dtype: type[np.generic], shape: tuple[int | None, ...]
    ) -> NDArray[Any]:
        """Read one member whole, at most MAX_ARRAY_BYTES.

        Args:
            dtype: Type of the result. The member may have another type with the same numbers.
            shape: Expected lengths by axis; None for any length.
        """
        with self._open(key, shape) as (stream, header):
            n_values, target = math.prod(header.shape), np.dtype(dtype)
            if n_values * target.itemsize > MAX_ARRAY_BYTES:
                limit = f"at most {MAX_ARRAY_BYTES}, or configs stored row by row (C order)"
                self.fail(key, f"has {n_values * target.itemsize} bytes; expected {limit}")
            values = np.empty(n_values, target)
            step = CHUNK_BYTES // header.dtype.itemsize
            for start in range(0, n_values, step):
                part = values[start : start + step]
                # The bytes have no name, so that the next ones reuse their memory.
                part[:] = self._exact(
                    key,
                    np.frombuffer(stream.read(len(part) * header.dtype.itemsize), header.dtype),
                    target,
                )
            stream.finish()
        # The dataset's own edge_index is stored column by column in some files.
        return values.reshape(header.shape, order="F" if header.by_column else "C")

    def shape(self, key: str, *, shape: tuple[int | None, ...]) -> tuple[int, ...]:
        """Read only a member's shape, checked as in `array`."""
        with self._open(key, shape) as (_, header):
            return header.shape

    def rows(
        self,
        key: str,
        *,
        dtype: type[np.generic],
        shape: tuple[int | None, ...],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[bytes]:
        """Yield the bytes of a member's rows in C order, checked as in `array`.

        Args:
            shape: Expected lengths by axis; None for any length.
            chunk_bytes: Approximate number of bytes at a time. At least one row is yielded.
        """
        with self._open(key, shape) as (stream, header):
            target, n_values = np.dtype(dtype), math.prod(header.shape)
            row_values = math.prod(header.shape[1:])
            n_rows = max(1, chunk_bytes // max(1, row_values * target.itemsize))
            if header.by_column and len(header.shape) > 1:
                values_by_column = self.array(key, dtype=dtype, shape=shape)
                for start in range(0, len(values_by_column), n_rows):
                    yield values_by_column[start : start + n_rows].tobytes()
                return
            for start in range(0, n_values, max(1, n_rows * row_values)):
                n_bytes = min(n_rows * row_values, n_values - start) * header.dtype.itemsize
                if header.dtype == target:
                    yield stream.read(n_bytes)
                else:
                    values = np.frombuffer(stream.read(n_bytes), header.dtype)
                    yield self._exact(key, values, target).tobytes()
            stream.finish()

    def _exact(self, key: str, values: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
        """Convert to another dtype, or fail if a number changes."""
        if values.dtype == target:
            return values
        with np.errstate(all="ignore"):
            exact = values.astype(target)
        is_same = exact == values
        if not is_same.all():
            problem = f"{values.dtype.newbyteorder('=')} with a value {values[np.argmin(is_same)]}"
            self.fail(key, f"has dtype {problem}; expected numbers that {target} has exactly")
        return exact

    @contextmanager
    def _open(
        self, key: str, shape: tuple[int | None, ...]
    ) -> Iterator[tuple["_MemberStream", ArrayHeader]]:
        self.require((key,))
        try:
            stream = _MemberStream(self._zip, self._members[key])
            header = _with_unit_axes(self._read_header(key, stream), shape)
            self._check_header(key, header, shape, stream)
            yield stream, header
        except NOT_READABLE as error:
            self.fail(key, f"damaged: {_reason(error)}")

    def _read_header(self, key: str, stream: "_MemberStream") -> ArrayHeader:
        try:
            version = npy_format.read_magic(stream)
            header = ArrayHeader(*HEADER_READERS[version](stream))
        except Exception as error:  # numpy evaluates the header's text: it may raise anything
            self.fail(key, f"no readable npy header, of version 1.0 or 2.0: {_reason(error)}")
        if header.dtype.hasobject:
            self.fail(key, "is an object array (pickle); expected plain numbers")
        if header.dtype.kind not in "iuf":
            self.fail(key, f"has dtype {str(header.dtype)[:MAX_REASON]}; expected plain numbers")
        return header

    def _check_header(
        self, key: str, header: ArrayHeader, shape: tuple[int | None, ...], stream: "_MemberStream"
    ) -> None:
        n_bytes = self._members[key].file_size
        n_held, shape_text = n_bytes - stream.position, str(header.shape)[:MAX_REASON]
        if min(header.shape, default=0) < 0 or max(header.shape, default=0) > n_bytes:
            self.fail(
                key, f"has shape {shape_text}, which its bytes cannot hold; expected its lengths"
            )
        if len(header.shape) != len(shape) or any(
            want not in (None, length) for want, length in zip(shape, header.shape, strict=True)
        ):
            requirement = ", ".join("any" if length is None else str(length) for length in shape)
            self.fail(key, f"has shape {shape_text}; expected ({requirement})")
        n_bytes = math.prod(header.shape) * header.dtype.itemsize
        if n_bytes != n_held:
            self.fail(key, f"has shape {shape_text}, {n_bytes} bytes, but holds {n_held}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__


class _MemberStream:
    """The bytes of one member. Its checksum is compared at the end."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.position = self._checksum = 0
        self._wanted = info.CRC
        is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
        self._inflate = FAST_ZLIB.decompressobj(-zlib.MAX_WBITS) if is_deflated else None
        # zipfile would inflate with zlib, so it gets an index entry of plain bytes.
        entry = copy(info)
        entry.compress_type, entry.file_size = zipfile.ZIP_STORED, info.compress_size
        del entry.CRC
        self._packed = archive.open(entry)

    def read(self, n_bytes: int = 1, /) -> bytes:
        """Read exactly `n_bytes`, or raise one of NOT_READABLE."""
        content = self._read_some(n_bytes)
        while len(content) < n_bytes:
            piece = self._read_some(n_bytes - len(content))
            if not piece:
                raise EOFError("ends too early")
            content += piece
        self._checksum = FAST_ZLIB.crc32(content, self._checksum)
        self.position += len(content)
        return content

    def finish(self) -> None:
        """Check that the member ends here with its checksum, or raise one of NOT_READABLE."""
        if self._read_some(1):
            raise EOFError("holds more bytes than its shape says")
        if self._checksum != self._wanted:
            raise EOFError("its checksum is wrong")

    def _read_some(self, at_most: int) -> bytes:
        if self._inflate is None:
            return self._packed.read(at_most)
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._packed.read(PACKED_CHUNK_BYTES)
            piece: bytes = self._inflate.decompress(packed, at_most)
            if piece or not packed:
                return piece
        return b""


@dataclass(frozen=True)
class Streamed:
    """An array of known shape, whose rows are computed while it is written.

    `pieces` is called once and yields consecutive blocks of rows, together `shape[0]` of them.
    """

    shape: tuple[int, ...]
    dtype: DTypeLike
    pieces: Callable[[], Iterable[NDArray[np.generic]]]


NpzMember = NDArray[np.generic] | Streamed


def write_npz(path: Path, members: Mapping[str, NpzMember]) -> None:
    """Write an npz file. Equal content gives equal bytes, because no time is stored."""
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(
            temporary, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL
        ) as archive,
    ):
        for name, member in members.items():
            # Opened by name, an entry gets the fixed date 1980-01-01.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                dtype = np.dtype(member.dtype)
                kind = npy_format.dtype_to_descr(dtype)
                description = {"descr": kind, "fortran_order": False, "shape": member.shape}
                npy_format.write_array_header_1_0(stream, description)
                for piece in member.pieces() if isinstance(member, Streamed) else [member]:
                    stream.write(np.ascontiguousarray(piece, dtype).data)
