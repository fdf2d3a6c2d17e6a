"""Read npz archives that may be damaged or hostile: every fault becomes one clear line.

What `np.load` leaves open is checked: the archive's structure (data.npz.zip_index), sizes against
shapes before anything is allocated, no pickled objects, and the checksum of every member read.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from common.errors import PipelineError
from data.npz.inflate import DamagedError, Inflated
from data.npz.rows import Rows
from data.npz.zip_index import read_index, shown

CHUNK_BYTES = 4 << 20
HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
MAX_LISTED = 12
MAX_REASON = 200


@dataclass(frozen=True)
class ArrayHeader:
    """What a .npy member says of itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool

    @property
    def n_bytes(self) -> int:
        """Return how many bytes the array takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Archive:
    """An open npz file; use it as a context manager.

    Raises:
        PipelineError: not a zip archive, or its structure is damaged; the line names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._members = read_index(path)
        try:
            self._raw = path.open("rb")
        except OSError as error:
            raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._raw.close()

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names of the arrays, in the order of the file."""
        return tuple(self._members)

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the one-line error that names this file and `key`."""
        raise PipelineError(f"{self.path}: key '{shown(key)}': {problem}")

    def require(self, keys: tuple[str, ...]) -> None:
        """Check that every key is there.

        Raises:
            PipelineError: names the first missing key and what the file holds.
        """
        for key in keys:
            if key not in self._members:
                held = [shown(name) for name in sorted(self._members)]
                listed = ", ".join(held[:MAX_LISTED]) or "nothing"
                more = ", …" if len(held) > MAX_LISTED else ""
                raise PipelineError(
                    f"{self.path}: key '{shown(key)}' is missing; expected {', '.join(keys)}; "
                    f"holds {listed}{more}"
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
            rows = Rows(stream, n_bytes=header.n_bytes, step=CHUNK_BYTES)
            content = b"".join(iter(rows.read, b""))
            stream.finish()
        values = np.frombuffer(content, dtype=header.dtype)
        # The dataset's own edge_index is stored column by column in some files.
        return values.reshape(header.shape, order="F" if header.by_column else "C")

    def header(
        self, key: str, *, dtype: type[np.generic], shape: tuple[int | None, ...]
    ) -> ArrayHeader:
        """Read only a member's shape and dtype, checked as in `array`."""
        with self._open(key, dtype, shape) as (_, header):
            return header

    @contextmanager
    def rows(
        self,
        key: str,
        *,
        dtype: type[np.generic],
        shape: tuple[int | None, ...],
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Rows]:
        """Open a member to read its rows, some at a time; faults while reading name `key`.

        Memory stays near `chunk_bytes`; a chunk holds whole rows, at least one. They are checked
        at the end, where all have been read.

        Raises:
            PipelineError: as `array`; or it is stored column by column.
        """
        with self._open(key, dtype, shape) as (stream, header):
            if header.by_column and len(header.shape) > 1:
                self.fail(key, "is stored column by column; expected row by row (C order)")
            row_bytes = int(np.prod(header.shape[1:], dtype=np.int64)) * header.dtype.itemsize
            step = max(1, chunk_bytes // max(1, row_bytes)) * row_bytes
            rows = Rows(stream, n_bytes=header.n_bytes, step=step)
            yield rows
            if not rows.left:
                stream.finish()

    @contextmanager
    def _open(
        self, key: str, dtype: type[np.generic], shape: tuple[int | None, ...]
    ) -> Iterator[tuple[Inflated, ArrayHeader]]:
        """Open a member behind its header, which is checked; faults while reading name `key`."""
        self.require((key,))
        member = self._members[key]
        stream = Inflated(self._raw, member)
        try:
            header = self._read_header(key, stream)
            self._check_header(key, header, dtype, shape)
            stored = header.n_bytes
            if stored + stream.tell() != member.n_bytes:
                held = member.n_bytes - stream.tell()
                self.fail(key, f"has shape {header.shape}, {stored} bytes, but holds {held}")
            yield stream, header
        except (DamagedError, OSError) as error:
            self.fail(key, f"damaged: {error}")

    def _read_header(self, key: str, stream: Inflated) -> ArrayHeader:
        try:
            version = npy_format.read_magic(stream)
            read = HEADER_READERS.get(version)
            with warnings.catch_warnings(action="error"):  # oddities are damage, not news
                shape, by_column, dtype = read(stream) if read else ((), False, np.dtype("V"))
        except DamagedError:
            raise
        except Exception as error:  # numpy evaluates the header's text: it may raise anything
            reason = " ".join(str(error).split())[:MAX_REASON]
            self.fail(key, f"no readable npy header: {reason or type(error).__name__}")
        if read is None:
            self.fail(key, f"is of npy version {version}; expected 1.0 or 2.0")
        return ArrayHeader(shape, dtype, by_column)

    def _check_header(
        self,
        key: str,
        header: ArrayHeader,
        dtype: type[np.generic],
        shape: tuple[int | None, ...],
    ) -> None:
        if header.dtype.hasobject:
            self.fail(key, "is an object array (pickle); expected plain numbers")
        if header.dtype != np.dtype(dtype):
            given = str(header.dtype)[:MAX_REASON]
            self.fail(key, f"has dtype {given}; expected {np.dtype(dtype).name}")
        n_values = 1
        for length in header.shape:
            n_values *= length
            if not 0 <= length <= self._members[key].n_bytes or n_values > np.iinfo(np.int64).max:
                self.fail(key, "has a shape that its bytes cannot hold; expected its true lengths")
        fits = len(header.shape) == len(shape) and all(
            want is None or want == length for want, length in zip(shape, header.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            given = str(header.shape)[:MAX_REASON]
            self.fail(key, f"has shape {given}; expected ({wanted})")
