"""Layout configs as small integers, packed from a stream of them; c configs of k nodes.

While configs stream by, layout vectors are given ids, and the ids of columns that are not tied are
kept: nearly always one byte per column and config, a few thousandths of the file. In the end the
vectors of each column are numbered anew from 0.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data.packing.configs import Alphabets, PackedConfigs
from data.packing.vectors import N_WORDS, VECTOR_BYTES, VectorTable

COMPARED_BYTES = 384 << 10  # small enough for a core's cache, beside the chunk
COLUMNS_AT_ONCE = 64  # that are renumbered side by side, as a row of memory holds them


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far; they only ever split.

    Attributes:
        first: (m,) int64 the first column of each group, ascending.
        group_of: (k,) int64 which group a column belongs to.
    """

    first: NDArray[np.int64]
    group_of: NDArray[np.int64]

    @classmethod
    def all_of(cls, n_columns: int) -> Self:
        """Tie all columns to each other."""
        return cls(np.zeros(1, np.int64), np.zeros(n_columns, np.int64))

    def split(self, rows: NDArray[np.int64]) -> Self:
        """Part columns that differ in `rows` (r, k); return these very groups if none does."""
        if (rows == rows[:, self.first[self.group_of]]).all():
            return self
        signatures = np.concatenate([self.group_of[None], rows])
        _, first, group_of = np.unique(signatures, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return type(self)(first[order], rank[group_of.reshape(-1)])


class ConfigEncoder:
    """Takes configs chunk by chunk, and returns all of them packed.

    Args:
        n_configurable: k.
    """

    def __init__(self, n_configurable: int) -> None:
        self.n_configurable, self.n_configs = n_configurable, 0
        self._table = VectorTable()
        self._columns = TiedColumns.all_of(n_configurable)
        self._chunks: list[tuple[TiedColumns, NDArray[Any]]] = []  # ids (r, m) in these columns
        n_rows = max(1, COMPARED_BYTES // (VECTOR_BYTES * n_configurable))
        self._meant = np.empty((n_rows, n_configurable, N_WORDS), np.uint64)

    def add(self, content: bytes) -> None:
        """Add whole configs: r · k layout vectors of 18 float32 values, compared bit by bit.

        Raises:
            UnknownValueError: a value is not a whole number -1..5.
        """
        ids = self._guess(content)
        if not self._agrees(content, ids):
            with np.errstate(invalid="ignore"):  # of bad values, refused below
                # Adding 0 makes 0 of -0, as which it is read; no other number changes.
                content = (np.frombuffer(content, np.float32) + np.float32(0)).tobytes()
            ids = self._mended(content, self._guess(content))
        self._chunks.append((self._columns, ids.astype(self._table.id_dtype)))
        self.n_configs += len(ids)

    def _guess(self, content: bytes) -> NDArray[np.int64]:
        words = np.frombuffer(content, np.uint64).reshape(-1, self.n_configurable, N_WORDS)
        return self._table.guess(words.take(self._columns.first, axis=1, mode="clip"))

    def _agrees(self, content: bytes, ids: NDArray[np.int64]) -> bool:
        """Tell whether `content`, r configs of k vectors, is what ids (r, m) and the ties say."""
        vectors, n_rows = self._table.meant_by(ids), len(self._meant)
        for start in range(0, len(ids), n_rows):
            part = vectors[start : start + n_rows]
            meant = self._meant[: len(part)]
            # "clip" spares a pass of checks: all groups are columns.
            part.take(self._columns.group_of, axis=1, out=meant, mode="clip")
            # At memory speed, where a slice of `content` would be a copy.
            if not content.startswith(meant.data, start * self._meant[0].nbytes):
                return False
        return True

    def _mended(self, content: bytes, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids (r, m) that are right, of columns that are tied in these configs as well."""
        ids = ids.take(self._columns.group_of, axis=1)  # in C order, to be mended in place
        self._table.mend(np.frombuffer(content, np.uint64).reshape(-1, N_WORDS), ids.reshape(-1))
        # Chunks keep the columns that they were added with.
        self._columns = self._columns.split(ids)
        return ids[:, self._columns.first]

    def packed(self) -> PackedConfigs:
        """Return all configs, and forget them here."""
        indices = self._taken_ids()
        order = self._table.order
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        codes = self._table.codes[order]
        taken = []  # by column, the vectors that it takes
        for start in range(0, indices.shape[1], COLUMNS_AT_ONCE):
            block = np.ascontiguousarray(indices[:, start : start + COLUMNS_AT_ONCE].T)
            for column in block:
                vectors, column[:] = _renumbered(column, position)
                taken.append(vectors)
            indices[:, start : start + COLUMNS_AT_ONCE] = block.T
        sizes = np.array([len(vectors) for vectors in taken], np.int64)
        table = np.zeros((len(taken), int(sizes.max(initial=1))), np.int64)
        for row, vectors in zip(table, taken, strict=True):
            row[: len(vectors)] = vectors
        alphabets = Alphabets(codes, self._columns.group_of, table, sizes)
        return PackedConfigs(alphabets, indices.astype(alphabets.index_dtype, copy=False))

    def _taken_ids(self) -> NDArray[Any]:
        """Return the ids (c, m) of all configs, by the columns that are distinct in the end."""
        first, n_columns = self._columns.first, len(self._columns.first)
        parts = [
            chunk if chunk.shape[1] == n_columns else chunk[:, columns.group_of[first]]
            for columns, chunk in self._chunks
        ]
        self._chunks.clear()
        none = np.empty((0, n_columns), self._table.id_dtype)
        return np.concatenate([none, *parts])  # of the widest of their types


def _renumbered(
    ids: NDArray[Any], position: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number what a column (c,) takes from 0 on.

    Returns:
        vectors: (a,) int64 positions of its vectors in the sorted codes, ascending.
        indices: (c,) int64 which of them each config has.
    """
    is_taken = np.zeros(len(position), np.bool_)
    is_taken[position[np.flatnonzero(np.bincount(ids, minlength=len(position)))]] = True
    vectors = np.flatnonzero(is_taken)
    index = np.cumsum(is_taken) - 1
    return vectors, index[position].take(ids)


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    encoder = ConfigEncoder(values.shape[1])
    encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    return encoder.packed()
