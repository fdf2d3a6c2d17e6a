"""Layout configs as small integers, packed from a stream of them; c configs of k nodes.

Two passes: the first reads the file, gives ids to layout vectors and keeps the ids of columns that
are not tied; the second, over those few bytes, numbers the vectors of each column anew from 0, so
that nearly always one byte per column and config is enough.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data.packing.columns import TiedColumns
from data.packing.comparison import Comparison
from data.packing.config_checksum import ConfigChecksum
from data.packing.content_hash import vector_hashes
from data.packing.vectors import N_VALUES, VectorTable

IN_MEMORY_BYTES = 32 << 20
TABLE_ENTRIES = 32 << 20  # of a table of all vectors in all columns
PAIRS_AT_ONCE = 1 << 20
PASS_BYTES = 256 << 10  # of ids at once in the second pass, where they take eight times as much


@dataclass(frozen=True)
class Alphabets:
    """How indices are to be read.

    Attributes:
        codes: (u,) int64 the distinct layout vectors of the graph, in base 7, ascending.
        column_of: (k,) int64 which stored column each configurable node's layouts are in.
        vectors: (m, a) int64 the vector that an index of a column means, as a position in
            `codes`; ascending, filled up with 0.
        sizes: (m,) int64 how many vectors each column takes.
    """

    codes: NDArray[np.int64]
    column_of: NDArray[np.int64]
    vectors: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """Return the narrowest type that holds every index."""
        return np.min_scalar_type(int(self.sizes.max(initial=1)) - 1)


@dataclass
class _Segment:
    """Consecutive rows in the spool that were written with the same columns."""

    columns: TiedColumns
    n_rows: int
    dtype: np.dtype[Any]


@dataclass
class ConfigEncoder:
    """The first pass: configs as vector ids, in memory or, where they are many, in a file.

    Use it as a context manager.

    Args:
        n_configurable: k.
        folder: of the temporary file; None for the system's.
    """

    n_configurable: int
    folder: str | None = None
    _table: VectorTable = field(default_factory=VectorTable)
    _comparison: Comparison = field(default_factory=Comparison)
    _checksum: ConfigChecksum | None = None
    _skimmed: list[NDArray[np.float32]] = field(default_factory=list)
    _segments: list[_Segment] = field(default_factory=list)
    _indices: list[NDArray[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._columns = TiedColumns.all_of(self.n_configurable)
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 (closed in __exit__)
            IN_MEMORY_BYTES, dir=self.folder
        )

    def __enter__(self) -> "ConfigEncoder":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def n_configs(self) -> int:
        """Return how many configs it holds."""
        return sum(segment.n_rows for segment in self._segments)

    def add(self, content: bytes) -> bool:
        """Add whole configs: r · k layout vectors of 18 float32 values, compared bit by bit.

        Returns:
            Whether they brought nothing new.

        Raises:
            UnknownValueError: a value is not a whole number -1..5.
        """
        ids = self._guess([self._firsts(content)])
        is_known = self._comparison.agrees(content, ids, self._columns, self._table)
        if not is_known:
            # Adding 0 makes 0 of -0, as which it is read; no other number changes.
            content = (np.frombuffer(content, np.float32) + np.float32(0)).tobytes()
            if not self._comparison.agrees(content, ids, self._columns, self._table):
                ids = self._mended(content, ids)
        self._write(ids)
        return is_known

    def _mended(self, content: bytes, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids (r, m) that are right, of columns that are tied in these configs as well."""
        ids = ids.take(self._columns.group_of, axis=1)  # in C order, to be mended in place
        vectors = np.frombuffer(content, np.float32).reshape(-1, N_VALUES)
        self._table.mend(vectors, ids.reshape(-1))
        # Segments keep the columns that they were written with.
        self._columns = self._columns.split(ids)
        return ids[:, self._columns.first]

    def can_skim(self) -> bool:
        """Tell whether a table of all vectors in all columns is small enough to `settle` by."""
        return self._table_entries() <= TABLE_ENTRIES // 4  # of four bytes each

    def _fits_a_table(self) -> bool:
        return self._table_entries() <= TABLE_ENTRIES

    def _table_entries(self) -> int:
        return len(self._columns.first) * len(self._table.codes)

    def skim(self, content: bytes) -> None:
        """Take from whole configs what they are if they bring nothing new; `settle` tells."""
        self._skimmed.append(self._firsts(content))

    @property
    def skimmed_bytes(self) -> int:
        """Return how much memory holds what has been skimmed since the last `settle`."""
        return sum(firsts.nbytes for firsts in self._skimmed)

    def settle(self, checksum: int) -> bool:
        """Add what has been skimmed, if it brought nothing new; else forget it.

        Configs of the same checksum as their ids stand for are what the ids say, as surely as the
        archive holds what was once written: a checksum tells accidents, and not bytes that somebody
        chose so that it would not change. Whatever they are, what is stored are layout vectors.

        Args:
            checksum: the CRC-32 of all that has been skimmed since the last call.
        """
        if self._checksum is None or not self._checksum.fits(self._columns, self._table):
            self._checksum = ConfigChecksum(self._columns, self._table)
        ids = self._guess(self._skimmed)
        self._skimmed.clear()
        is_known = self._checksum(ids) == checksum
        if is_known:
            self._write(ids)
        return is_known

    def _firsts(self, content: bytes) -> NDArray[np.float32]:
        """Return the vectors (r, m, 18) of the first column of each group."""
        vectors = np.frombuffer(content, np.float32).reshape(-1, self.n_configurable, N_VALUES)
        return vectors.take(self._columns.first, axis=1, mode="clip")

    def _guess(self, firsts: Sequence[NDArray[np.float32]]) -> NDArray[np.int64]:
        """Return ids (r, m) for the first column of each group."""
        vectors = np.concatenate(firsts)
        return self._table.guess(vectors.reshape(-1, N_VALUES)).reshape(vectors.shape[:2])

    def _write(self, ids: NDArray[np.int64]) -> None:
        """Write ids (r, m)."""
        dtype = np.min_scalar_type(max(0, len(self._table.codes) - 1))
        last = self._segments[-1] if self._segments else None
        if last is None or last.columns is not self._columns or last.dtype != dtype:
            last = _Segment(self._columns, 0, dtype)
            self._segments.append(last)
        last.n_rows += len(ids)
        self._file.write(np.ascontiguousarray(ids, dtype).data)

    def alphabets(self) -> Alphabets:
        """Return the distinct vectors of the graph and of each column."""
        codes = self._table.codes
        n_columns = len(self._columns.first)
        pairs = self._pairs()
        first = np.searchsorted(pairs, np.arange(n_columns + 1) * len(codes))
        sizes = np.diff(first)
        vectors = np.zeros((n_columns, int(sizes.max(initial=1))), np.int64)
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            column, vector = np.divmod(pairs[start : start + PAIRS_AT_ONCE], len(codes))
            vectors[column, start + np.arange(len(column)) - first[column]] = vector
        return Alphabets(codes[self._table.order], self._columns.group_of, vectors, sizes)

    def _pairs(self) -> NDArray[np.int64]:
        """Return which vectors each column takes: column · u + position in the sorted codes.

        They are ascending; (p,) int64.
        """
        position, starts = self._positions()
        if self._fits_a_table():
            seen = np.zeros(len(starts) * len(position), np.bool_)
            for ids in self._rows(PASS_BYTES):
                seen[position[ids] + starts] = True
            return np.flatnonzero(seen)
        found = np.empty(0, np.int64)
        for ids in self._rows(PASS_BYTES):
            found = _merged(found, (position[ids] + starts).reshape(-1))
        return found

    def _positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each id's position in the sorted codes, (u,), and column · u, (m,)."""
        codes = self._table.codes
        position = np.empty(len(codes), np.int64)
        position[self._table.order] = np.arange(len(codes))
        return position, np.arange(len(self._columns.first)) * len(codes)

    def indices(
        self, alphabets: Alphabets, *, chunk_bytes: int = PASS_BYTES
    ) -> Iterator[NDArray[Any]]:
        """Yield the indices (r, m) of some configs at a time, in order."""
        if self._indices:
            yield from self._indices
            return
        index_of = self._indexer(alphabets)
        row_bytes = len(alphabets.sizes) * alphabets.index_dtype.itemsize
        is_small = self.n_configs * row_bytes <= IN_MEMORY_BYTES
        made = []
        for ids in self._rows(chunk_bytes):
            indices = index_of(ids)
            if is_small:
                made.append(indices)
            yield indices
        self._indices = made  # the next caller need not wait again

    def _indexer(self, alphabets: Alphabets) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
        """Return what turns ids (r, m) into indices (r, m): a table, or a search for many."""
        position, starts = self._positions()
        if self._fits_a_table():
            by_id = np.zeros((len(starts), len(position)), alphabets.index_dtype)
            ids_in_order = self._table.order
            for index in range(alphabets.vectors.shape[1]):
                used = np.flatnonzero(alphabets.sizes > index)
                by_id[used, ids_in_order[alphabets.vectors[used, index]]] = index
            return lambda ids: by_id.reshape(-1).take(ids + starts, mode="clip")
        is_used = np.arange(alphabets.vectors.shape[1]) < alphabets.sizes[:, None]
        pairs = (alphabets.vectors + starts[:, None])[is_used]  # ascending
        first = np.cumsum(alphabets.sizes) - alphabets.sizes
        index_of = (np.arange(len(pairs)) - np.repeat(first, alphabets.sizes)).astype(
            alphabets.index_dtype
        )
        return lambda ids: index_of[np.searchsorted(pairs, position[ids] + starts)]

    def hashes(self, alphabets: Alphabets, *, chunk_bytes: int = PASS_BYTES) -> NDArray[np.uint64]:
        """Return the (c,) content hashes of all configs."""
        added = np.zeros(alphabets.vectors.shape, np.uint64)  # by column and index
        step = max(1, PAIRS_AT_ONCE // alphabets.vectors.shape[1])
        for start in range(0, len(alphabets.column_of), step):
            column = alphabets.column_of[start : start + step]
            nodes = (start + np.arange(len(column)))[:, None]
            codes = alphabets.codes[alphabets.vectors[column]]  # (some of k, a)
            np.add.at(added, column, vector_hashes(nodes, codes))
        starts = np.arange(len(added)) * alphabets.vectors.shape[1]
        parts = [
            added.reshape(-1).take(indices + starts, mode="clip").sum(axis=1, dtype=np.uint64)
            for indices in self.indices(alphabets, chunk_bytes=chunk_bytes)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def _rows(self, chunk_bytes: int) -> Iterator[NDArray[np.int64]]:
        """Yield the ids (r, m) of all rows, by the columns that are distinct in the end."""
        self._file.seek(0)
        for segment in self._segments:
            column = segment.columns.group_of[self._columns.first]
            row_bytes = max(1, len(segment.columns.first) * segment.dtype.itemsize)
            step = max(1, chunk_bytes // row_bytes)
            for start in range(0, segment.n_rows, step):
                n_rows = min(step, segment.n_rows - start)
                content = self._file.read(n_rows * row_bytes)
                ids = np.frombuffer(content, segment.dtype).reshape(n_rows, -1)
                yield ids[:, column].astype(np.int64)


def _merged(ascending: NDArray[np.int64], further: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add values to ascending distinct ones; numpy's union hashes them, which takes far longer."""
    further = np.sort(further)
    further = further[np.flatnonzero(np.diff(further, prepend=-1))]
    places = np.searchsorted(ascending, further)
    is_new = np.ones(len(further), np.bool_)
    inside = places < len(ascending)
    is_new[inside] = ascending[places[inside]] != further[inside]
    if not is_new.any():
        return ascending
    both = np.concatenate([ascending, further[is_new]])
    both.sort(kind="stable")  # merges the two runs
    return both
