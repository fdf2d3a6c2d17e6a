"""Layout configs as small ints, packed from a stream: c configs of k nodes.

A config gives each configurable node a layout vector of 18 values -1..5. A table has the distinct
vectors of a graph. A config is an index into the table for each column of nodes.

The content hash of a config is equal on every machine and in every storage. It is the sum, modulo
2^64, of one random-looking number for each node's layout vector. This is multilinear hashing
(Carter and Wegman 1979), with a mixing function instead of a random table. Two different configs
agree with a chance of about 2^-64; for 100,000 configs that is 3e-10 in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -1, 5  # -1 = no dimension
N_VALUES = 18
N_WORDS = 9  # words of 64 bits for 18 values in float32
N_SYMBOLS = 7  # the values -1..5
N_TENSORS = 3  # output, input, kernel
VALUES_PER_TENSOR = 6
N_CODES = N_SYMBOLS**2  # of two values
POWERS = N_SYMBOLS ** np.arange(N_VALUES, dtype=np.int64)
DECODED_AT_ONCE = 1 << 14  # codes, of which each needs 144 bytes for its digits
CHUNK_BYTES = 384 << 10
# Words to encode at once, of chunks in which tied columns are equal.
LOOKED_UP_WORDS = 48 << 10

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
MIX_TWO = np.uint64(0x94D049BB133111EB)

Words = NDArray[np.uint64]


class UnknownValueError(Exception):
    """A layout vector has an invalid value in one of its 18 places."""

    def __init__(self, vector: int, place: int, value: float) -> None:
        super().__init__(f"vector {vector}, value {place} is {value}")
        self.vector, self.place, self.value = vector, place, value


def checked_codes(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return a file's vectors (v, 18) as base-7 numbers, (v,) int64, or raise UnknownValueError."""
    with np.errstate(invalid="ignore"):
        ints = vectors.astype(np.int8)
    if (ints != vectors).any() or ints.min(initial=0) < LOWEST or ints.max(initial=0) > HIGHEST:
        good = (ints == vectors) & (ints >= LOWEST) & (ints <= HIGHEST)
        row, place = (int(i) for i in np.argwhere(~good)[0])
        raise UnknownValueError(row, place, float(vectors[row, place]))
    # Floats are exact here, because no sum reaches 2^53, and many times as fast as ints.
    codes = vectors.astype(np.float64) @ POWERS.astype(np.float64) - LOWEST * POWERS.sum()
    return codes.astype(np.int64)


def n_usual(vectors: NDArray[np.int8]) -> NDArray[np.int64]:
    """Count the layouts that each vector (u, 18) names, (u,); -1 if a layout is unusual.

    In a usual layout the last dimension is the most minor one, and the others follow in order. Most
    layouts of a compiler are usual.
    """
    tensors = vectors.reshape(len(vectors), N_TENSORS, -1)
    n_dimensions = (tensors >= 0).sum(axis=2, keepdims=True)
    usual = n_dimensions - 1 - np.arange(tensors.shape[2])
    is_usual = ((tensors == usual) | (tensors < 0)).all(axis=(1, 2))
    return np.where(is_usual, (n_dimensions > 0).sum(axis=(1, 2)), -1)


@dataclass(frozen=True)
class Codebooks:
    """The layout vectors that the indices of PackedConfigs mean."""

    codes: NDArray[np.int64]  # (u,) the graph's distinct layout vectors, in base 7, ascending
    column_of: NDArray[np.int64]  # (k,) the column of each node
    # (m, a) positions in `codes` by column and index; ascending, filled up with 0
    vectors: NDArray[np.int64]
    sizes: NDArray[np.int64]  # (m,) number of vectors of each column


@dataclass(frozen=True)
class PackedConfigs:
    """All configs of one layout graph: a table of distinct layout vectors, and indices into it."""

    codebooks: Codebooks
    indices: NDArray[Any]  # (c, m) unsigned; columns that are tied to each other are stored once

    @property
    def n_configs(self) -> int:
        return self.indices.shape[0]

    @property
    def n_configurable(self) -> int:
        return len(self.codebooks.column_of)

    @cached_property
    def vectors(self) -> NDArray[np.int8]:
        """Return (u, 18) int8, the distinct layout vectors of the graph."""
        codes = self.codebooks.codes
        vectors = np.empty((len(codes), N_VALUES), np.int8)
        for start in range(0, len(codes), DECODED_AT_ONCE):
            part = slice(start, start + DECODED_AT_ONCE)
            vectors[part] = codes[part, None] // POWERS % N_SYMBOLS + LOWEST
        return vectors

    def vector_ids(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions (r, k) in `vectors` of the layouts of configs at `index` (r,)."""
        vectors = self.codebooks.vectors
        places = self.places(index) + np.arange(len(vectors)) * vectors.shape[1]
        return vectors.reshape(-1).take(places).take(self.codebooks.column_of, axis=1)

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices (r, m), int64, of configs at positions (r,) into column vectors."""
        return self.indices[index].astype(np.int64)

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the configs at `index` (r,) as (r, k, 18) int8, in that order."""
        return self.vectors.take(self.vector_ids(index), axis=0)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return a hash per config, (c,), uint64, equal for equal configs on every machine."""
        return self._hashes

    @cached_property
    def _hashes(self) -> NDArray[np.uint64]:
        codebooks, hashes = self.codebooks, np.zeros(self.n_configs, np.uint64)
        for column, size in enumerate(codebooks.sizes):
            nodes = np.flatnonzero(codebooks.column_of == column)
            codes = codebooks.codes[codebooks.vectors[column, :size]]
            terms = vector_hashes(nodes[:, None], codes).sum(axis=0, dtype=np.uint64)
            hashes += terms.take(self.indices[:, column])
        return hashes


def vector_hashes(nodes: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the terms of layout vectors in a config's hash, uint64, of the broadcast shape.

    Args:
        nodes: Position of each node in config order, 0..k-1.
    """
    with np.errstate(over="ignore"):
        salts = _mix(nodes.astype(np.uint64) * GOLDEN + GOLDEN)
        return _mix(salts ^ (codes.astype(np.uint64) * GOLDEN))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * MIX_ONE
    values = (values ^ (values >> np.uint64(27))) * MIX_TWO
    return values ^ (values >> np.uint64(31))


def chunk_bytes(n_configurable: int) -> int:
    """Return the bytes of configs to encode at once: whole rows that fit into a core's cache."""
    row_bytes = max(1, n_configurable) * N_WORDS * 8
    return max(1, CHUNK_BYTES // row_bytes) * row_bytes


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far. They are only ever split."""

    first: NDArray[np.int64]  # (m,) the first column of each group, ascending
    group_of: NDArray[np.int64]  # (k,) the group of each column

    def are_equal_in(self, content: bytes, first_columns: Words) -> bool:
        """Return whether tied columns equal the first one of their group, (r, m, 9), in a chunk."""
        copies = first_columns.take(self.group_of, axis=1, mode="clip")  # skips a check of bounds
        return content.startswith(copies.data)  # compares at the speed of the memory

    def split(self, rows: NDArray[np.int64]) -> Self:
        """Split groups whose columns differ in `rows` (r, k). Return this object if none does."""
        if (rows == rows[:, self.first[self.group_of]]).all():
            return self
        signatures = np.concatenate([self.group_of[None], rows])
        _, first, group_of = np.unique(signatures, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return type(self)(first[order], rank[group_of.reshape(-1)])


class ConfigEncoder:
    """Encodes configs of k nodes chunk by chunk, and returns all of them packed."""

    def __init__(self, n_configurable: int) -> None:
        self.n_configurable = n_configurable
        all_tied = np.zeros(n_configurable, np.int64)
        self._columns = TiedColumns(np.zeros(1, np.int64), all_tied)
        self._waiting: list[Words] = []  # (r, m, 9) of these columns
        # Tied columns of r rows, their distinct codes (f,), and positions in these codes (r, m).
        self._chunks: list[tuple[TiedColumns, NDArray[np.int64], NDArray[Any]]] = []
        self._n_configs = 0  # of `_chunks`

    def add(self, content: bytes) -> None:
        """Encode r whole configs: r · k vectors of 18 float32. It may raise UnknownValueError."""
        words = np.frombuffer(content, np.uint64).reshape(-1, self.n_configurable, N_WORDS)
        first_columns = words.take(self._columns.first, axis=1, mode="clip")
        if self._columns.are_equal_in(content, first_columns):
            self._waiting.append(first_columns)
            if len(self._waiting) * first_columns.size >= LOOKED_UP_WORDS:
                self._look_up()
            return
        self._look_up()
        codes = self._codes(words, np.arange(self.n_configurable))
        # Earlier chunks refer to the earlier columns.
        self._columns = self._columns.split(codes)
        self._keep(codes[:, self._columns.first])

    def _look_up(self) -> None:
        if self._waiting:
            self._keep(self._codes(np.concatenate(self._waiting), self._columns.first))
            self._waiting.clear()

    def _codes(self, words: Words, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes (r, m) of the vectors (r, m, 9) of nodes (m,)."""
        vectors = words.view(np.float32).reshape(-1, N_VALUES)
        try:
            return checked_codes(vectors).reshape(words.shape[:2])
        except UnknownValueError as unknown:  # its vector number counts from this chunk
            row, column = divmod(unknown.vector, len(nodes))
            vector = (self._n_configs + row) * self.n_configurable + int(nodes[column])
            raise UnknownValueError(vector, unknown.place, unknown.value) from unknown

    def _keep(self, codes: NDArray[np.int64]) -> None:
        # `return_inverse` sorts positions, which takes several times as long.
        distinct = np.unique(codes)
        positions = np.searchsorted(distinct, codes).astype(np.min_scalar_type(len(distinct)))
        self._chunks.append((self._columns, distinct, positions))
        self._n_configs += len(codes)

    def packed(self) -> PackedConfigs:
        """Return all configs packed, and remove them from this encoder."""
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
        for number, used in enumerate(map(np.flatnonzero, is_taken)):
            vectors[number, : len(used)] = used
            index[number, used] = np.arange(len(used))
        no_rows = np.empty((0, len(first)), index.dtype)
        indices = np.concatenate([no_rows, *(index[column, n] for n in self._numbers(codes))])
        self._chunks.clear()
        return PackedConfigs(Codebooks(codes, self._columns.group_of, vectors, sizes), indices)

    def _numbers(self, codes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the positions (r, m) in `codes` of each chunk, for the final m columns."""
        for columns, distinct, positions in self._chunks:
            yield np.searchsorted(codes, distinct)[
                positions[:, columns.group_of[self._columns.first]]
            ]


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    encoder = ConfigEncoder(values.shape[1])
    encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    return encoder.packed()
