"""Layout configs as small integers, packed from a stream of them; c configs of k nodes.

While configs stream by, layout vectors are given ids, and the ids of columns that are not tied are
kept: nearly always one byte per column and config, a few thousandths of the file. In the end the
vectors of each column are numbered anew from 0.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data.packing.configs import Alphabets, PackedConfigs
from data.packing.vectors import N_WORDS, UnknownValueError, VectorTable, Words

CHUNK_BYTES = 384 << 10
BLOCK_WORDS = 4  # numpy gathers items of 32 bytes at twice the speed of whole vectors
LOOKED_UP_WORDS = 48 << 10  # at once, of chunks that the ties hold for
COLUMNS_AT_ONCE = 64  # that are renumbered side by side, as a row of memory holds them


def chunk_bytes(n_configurable: int) -> int:
    """Return how much to add at once: whole stretches of rows, about what a core's cache takes."""
    stretch_bytes = _stretch(n_configurable) * n_configurable * N_WORDS * 8
    return max(1, CHUNK_BYTES // stretch_bytes) * stretch_bytes


def _stretch(n_configurable: int) -> int:
    return BLOCK_WORDS // math.gcd(BLOCK_WORDS, n_configurable)  # the fewest rows that blocks fill


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far; they only ever split.

    Attributes:
        first: (m,) int64 the first column of each group, ascending.
        group_of: (k,) int64 which group a column belongs to.
    """

    first: NDArray[np.int64]
    group_of: NDArray[np.int64]

    @cached_property
    def _blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        # The distinct blocks (b, 4) of a stretch, as places in its groups' words (rows, m, 9), and
        # which of them stands where. Should two share a key, no chunk holds: all are looked up.
        rows = np.arange(_stretch(len(self.group_of)))[:, None, None] * len(self.first) * N_WORDS
        places = self.group_of[:, None] * N_WORDS + np.arange(N_WORDS)
        blocks = (rows + places).reshape(-1, BLOCK_WORDS)
        keys = blocks @ (100_000_007 ** np.arange(BLOCK_WORDS))
        _, first, block_of = np.unique(keys, return_index=True, return_inverse=True)
        return blocks[first], block_of

    def hold(self, content: bytes, kept: Words) -> bool:
        """Tell whether `content`, r configs of k vectors, is `kept` (r, m, 9) in all columns."""
        n_rows = _stretch(len(self.group_of))
        # "clip" spares a pass of checks: all are places.
        if len(kept) % n_rows:
            meant = kept.take(self.group_of, axis=1, mode="clip")
        else:
            words, block_of = self._blocks
            stretches = kept.reshape(len(kept) // n_rows, -1)
            meant = stretches.take(words, axis=1, mode="clip").take(block_of, axis=1, mode="clip")
        return content.startswith(meant.data)  # at memory speed; they are of one length

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
        self.n_configurable = n_configurable
        self._table = VectorTable()
        self._columns = TiedColumns.all_of(n_configurable)
        self._waiting: list[Words] = []  # (r, m, 9) of these columns
        self._chunks: list[tuple[TiedColumns, NDArray[Any]]] = []  # ids (r, m) in their columns
        self._n_configs = 0  # of `_chunks`

    def add(self, content: bytes) -> None:
        """Add whole configs: r · k layout vectors of 18 float32 values, compared bit by bit.

        Raises:
            UnknownValueError: a value, added now or before, is not a whole number -1..5.
        """
        words = np.frombuffer(content, np.uint64).reshape(-1, self.n_configurable, N_WORDS)
        kept = words.take(self._columns.first, axis=1, mode="clip")  # all groups are columns
        if self._columns.hold(content, kept):
            self._waiting.append(kept)
            if len(self._waiting) * kept.size >= LOOKED_UP_WORDS:
                self._look_up()
            return
        self._look_up()
        with np.errstate(invalid="ignore"):  # of bad values, refused at once
            # Adding 0 makes 0 of -0, as which it is read; no other number changes.
            words = (words.view(np.float32) + np.float32(0)).view(np.uint64)
        ids = self._ids(words, np.arange(self.n_configurable))
        self._columns = self._columns.split(ids)  # chunks keep those that they were added with
        self._keep(ids[:, self._columns.first])

    def _look_up(self) -> None:
        if self._waiting:
            self._keep(self._ids(np.concatenate(self._waiting), self._columns.first))
            self._waiting.clear()

    def _ids(self, words: Words, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids (r, m) of the vectors (r, m, 9) of some nodes (m,)."""
        ids = self._table.guess(words)
        try:
            self._table.mend(words.reshape(-1, N_WORDS), ids.reshape(-1))
        except UnknownValueError as unknown:  # whose vector is counted in these words
            row, column = divmod(unknown.vector, len(nodes))
            vector = (self._n_configs + row) * self.n_configurable + int(nodes[column])
            raise UnknownValueError(vector, unknown.place, unknown.value) from unknown
        return ids

    def _keep(self, ids: NDArray[np.int64]) -> None:
        self._chunks.append((self._columns, ids.astype(self._table.id_dtype)))
        self._n_configs += len(ids)

    def packed(self) -> PackedConfigs:
        """Return all configs, and forget them here; raises as `add`."""
        self._look_up()
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
    return vectors, index[position].astype(ids.dtype).take(ids)


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    encoder = ConfigEncoder(values.shape[1])
    encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    return encoder.packed()
