"""Layout configs as small integers, packed from a stream of them; c configs of k nodes.

While configs stream by, the codes of columns that are not tied are kept, numbered chunk by chunk:
nearly always one byte per column and config, a few thousandths of the file. In the end the vectors
of each column are numbered anew from 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data.packing.configs import Alphabets, PackedConfigs
from data.packing.vectors import N_VALUES, N_WORDS, UnknownValueError, checked_codes

CHUNK_BYTES = 384 << 10
LOOKED_UP_WORDS = 48 << 10  # at once, of chunks that the ties hold for

Words = NDArray[np.uint64]


def chunk_bytes(n_configurable: int) -> int:
    """Return how much to add at once: whole rows, about what a core's cache takes."""
    row_bytes = max(1, n_configurable) * N_WORDS * 8
    return max(1, CHUNK_BYTES // row_bytes) * row_bytes


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far; they only ever split.

    Attributes:
        first: (m,) int64 the first column of each group, ascending.
        group_of: (k,) int64 which group a column belongs to.
    """

    first: NDArray[np.int64]
    group_of: NDArray[np.int64]

    def hold(self, content: bytes, kept: Words) -> bool:
        """Tell whether `content`, r configs of k vectors, is `kept` (r, m, 9) in all columns."""
        meant = kept.take(self.group_of, axis=1, mode="clip")  # spares a pass of checks
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
        self._columns = TiedColumns.all_of(n_configurable)
        self._waiting: list[Words] = []  # (r, m, 9) of these columns
        # Of some rows their columns, the codes in them (f,), and which of these each has (r, m).
        self._chunks: list[tuple[TiedColumns, NDArray[np.int64], NDArray[Any]]] = []
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
        codes = self._codes(words, np.arange(self.n_configurable))
        self._columns = self._columns.split(codes)  # chunks keep those that they were added with
        self._keep(codes[:, self._columns.first])

    def _look_up(self) -> None:
        if self._waiting:
            self._keep(self._codes(np.concatenate(self._waiting), self._columns.first))
            self._waiting.clear()

    def _codes(self, words: Words, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes (r, m) of the vectors (r, m, 9) of some nodes (m,)."""
        vectors = words.view(np.float32).reshape(-1, N_VALUES)
        try:
            return checked_codes(vectors).reshape(words.shape[:2])
        except UnknownValueError as unknown:  # whose vector is counted in these words
            row, column = divmod(unknown.vector, len(nodes))
            vector = (self._n_configs + row) * self.n_configurable + int(nodes[column])
            raise UnknownValueError(vector, unknown.place, unknown.value) from unknown

    def _keep(self, codes: NDArray[np.int64]) -> None:
        found = np.unique(codes)  # its own `return_inverse` sorts positions, several times slower
        own = np.searchsorted(found, codes).astype(np.min_scalar_type(len(found)))
        self._chunks.append((self._columns, found, own))
        self._n_configs += len(codes)

    def packed(self) -> PackedConfigs:
        """Return all configs, and forget them here; raises as `add`."""
        self._look_up()
        first = self._columns.first
        column = np.arange(len(first))
        codes = np.unique(np.concatenate([np.empty(0, np.int64), *(f for _, f, _ in self._chunks)]))
        is_taken = np.zeros((len(first), len(codes)), np.bool_)
        for numbers in self._numbers(codes):
            is_taken[column, numbers] = True
        sizes = is_taken.sum(axis=1)
        longest = int(sizes.max(initial=1))
        vectors = np.zeros((len(first), longest), np.int64)
        index = np.zeros(is_taken.shape, np.min_scalar_type(longest - 1))
        for number, taken in enumerate(map(np.flatnonzero, is_taken)):
            vectors[number, : len(taken)] = taken
            index[number, taken] = np.arange(len(taken))
        none = np.empty((0, len(first)), index.dtype)
        indices = np.concatenate([none, *(index[column, n] for n in self._numbers(codes))])
        self._chunks.clear()
        return PackedConfigs(Alphabets(codes, self._columns.group_of, vectors, sizes), indices)

    def _numbers(self, codes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield which of all codes each config has, by the columns that are distinct in the end."""
        for columns, found, own in self._chunks:
            yield np.searchsorted(codes, found)[own[:, columns.group_of[self._columns.first]]]


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    encoder = ConfigEncoder(values.shape[1])
    encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    return encoder.packed()
