"""Layout configs as small integers, packed from a stream of them; c configs of k nodes.

What one config says of one configurable node is a layout vector, 18 values -1..5. A graph's
distinct vectors stand in a table; a config is an index into it for each column of nodes.

A config's content hash is equal on every machine and however configs are stored: the sum, modulo
2^64, of one random-looking number for each node's layout vector (multilinear hashing, Carter and
Wegman 1979, with a mixing function for the random table). Two different configs agree with a chance
of about 2^-64; for 100,000 configs that is 3e-10 in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -1, 5  # of a layout value: a dimension number, or none
N_VALUES = 18
N_WORDS = 9  # of 64 bits: 18 values as the file has them, in float32
N_SYMBOLS = 7  # what a value can be
N_TENSORS = 3  # output, input, kernel
VALUES_PER_TENSOR = 6
N_CODES = N_SYMBOLS**2  # of two values
POWERS = N_SYMBOLS ** np.arange(N_VALUES, dtype=np.int64)
DECODED_AT_ONCE = 1 << 14  # codes, whose digits take 18 times 8 bytes each on the way
HASHED_AT_ONCE = 1 << 18  # indices, which take sixteen times as much memory on the way
CHUNK_BYTES = 384 << 10
LOOKED_UP_WORDS = 48 << 10  # at once, of chunks that the ties hold for

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
MIX_TWO = np.uint64(0x94D049BB133111EB)

Words = NDArray[np.uint64]


class UnknownValueError(Exception):
    """A vector of those given holds, in one of its 18 places, a value that is no layout value."""

    def __init__(self, vector: int, place: int, value: float) -> None:
        super().__init__(f"vector {vector}, value {place} is {value}")
        self.vector, self.place, self.value = vector, place, value


def vector_codes(vectors: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return vectors (u, 18) of values -1..5 as (u,) int64 numbers in base 7."""
    return (vectors.astype(np.int64) - LOWEST) @ POWERS


def decoded(codes: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the (u, 18) int8 vectors of codes (u,)."""
    vectors = np.empty((len(codes), N_VALUES), np.int8)
    for start in range(0, len(codes), DECODED_AT_ONCE):
        part = slice(start, start + DECODED_AT_ONCE)
        vectors[part] = codes[part, None] // POWERS % N_SYMBOLS + LOWEST
    return vectors


def checked_codes(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the codes of a file's vectors (v, 18); UnknownValueError: names the first wrong."""
    with np.errstate(invalid="ignore"):  # of bad values, refused at once
        whole = vectors.astype(np.int8)
    if (whole != vectors).any() or whole.min(initial=0) < LOWEST or whole.max(initial=0) > HIGHEST:
        good = (whole == vectors) & (whole >= LOWEST) & (whole <= HIGHEST)
        row, place = (int(i) for i in np.argwhere(~good)[0])
        raise UnknownValueError(row, place, float(vectors[row, place]))
    # Exact, and many times as fast as with whole numbers: no sum reaches 2^53.
    codes = vectors.astype(np.float64) @ POWERS.astype(np.float64) - LOWEST * POWERS.sum()
    return codes.astype(np.int64)


def n_usual(vectors: NDArray[np.int8]) -> NDArray[np.int64]:
    """Count the layouts that vectors (u, 18) name, (u,); -1 where one of them is unusual.

    A usual layout has the last dimension as the most minor and the others in order behind it, as a
    compiler's own mostly has.
    """
    tensors = vectors.reshape(len(vectors), N_TENSORS, -1)
    n_dimensions = (tensors >= 0).sum(axis=2, keepdims=True)
    usual = n_dimensions - 1 - np.arange(tensors.shape[2])
    is_usual = ((tensors == usual) | (tensors < 0)).all(axis=(1, 2))
    return np.where(is_usual, (n_dimensions > 0).sum(axis=(1, 2)), -1)


@dataclass(frozen=True)
class Codebooks:
    """How indices are to be read."""

    codes: NDArray[np.int64]  # (u,) the graph's distinct layout vectors, in base 7, ascending
    column_of: NDArray[np.int64]  # (k,) which stored column each node's layouts are in
    # (m, a) which of `codes` an index of a column means; ascending, filled up with 0
    vectors: NDArray[np.int64]
    sizes: NDArray[np.int64]  # (m,) how many vectors each column takes


@dataclass(frozen=True)
class PackedConfigs:
    """All configs of one layout graph: a table of distinct layout vectors, and indices into it."""

    codebooks: Codebooks  # what an index means, by column
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
        return decoded(self.codebooks.codes)

    def vector_ids(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of `vectors` each node has in the configs at `index` (r,); (r, k) int64."""
        vectors = self.codebooks.vectors
        places = self.places(index) + np.arange(len(vectors)) * vectors.shape[1]
        return vectors.reshape(-1).take(places).take(self.codebooks.column_of, axis=1)

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of its column's vectors each column has; (r, m) int64 below a."""
        return self.indices[index].astype(np.int64)

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the configs at `index` (r,) as (r, k, 18) int8, in that order."""
        return self.vectors.take(self.vector_ids(index), axis=0)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return (c,) uint64; equal configs have equal hashes, on every machine."""
        return self._hashes

    @cached_property
    def _hashes(self) -> NDArray[np.uint64]:
        codebooks = self.codebooks
        shape = codebooks.vectors.shape
        added: NDArray[np.uint64] = np.zeros(shape, np.uint64)  # by column and index
        for node, column in enumerate(codebooks.column_of):
            size = codebooks.sizes[column]
            codes = codebooks.codes[codebooks.vectors[column, :size]]
            added[column, :size] += vector_hashes(np.array([node]), codes)
        starts = np.arange(len(added)) * added.shape[1]
        hashes = np.empty(self.n_configs, np.uint64)
        step = max(1, HASHED_AT_ONCE // max(1, len(added)))
        for start in range(0, self.n_configs, step):
            places = self.indices[start : start + step] + starts
            hashes[start : start + step] = added.reshape(-1).take(places).sum(1, dtype=np.uint64)
        return hashes


def vector_hashes(nodes: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return what layout vectors, by `vector_codes`, of nodes 0..k-1 add to a config's hash."""
    with np.errstate(over="ignore"):
        salted = _mixed(nodes.astype(np.uint64) * GOLDEN + GOLDEN)
        return _mixed(salted ^ (codes.astype(np.uint64) * GOLDEN))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * MIX_ONE
    values = (values ^ (values >> np.uint64(27))) * MIX_TWO
    return values ^ (values >> np.uint64(31))


def chunk_bytes(n_configurable: int) -> int:
    """Return how much to add at once: whole rows, about what a core's cache takes."""
    row_bytes = max(1, n_configurable) * N_WORDS * 8
    return max(1, CHUNK_BYTES // row_bytes) * row_bytes


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far; they only ever split."""

    first: NDArray[np.int64]  # (m,) the first column of each group, ascending
    group_of: NDArray[np.int64]  # (k,) which group a column belongs to

    def hold(self, content: bytes, kept: Words) -> bool:
        """Tell whether `content`, r configs of k vectors, is `kept` (r, m, 9) in all columns."""
        meant = kept.take(self.group_of, axis=1, mode="clip")  # spares a pass of checks
        return content.startswith(meant.data)  # at memory speed; they are of one length

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
    """Takes configs of k nodes chunk by chunk, and returns all of them packed."""

    def __init__(self, n_configurable: int) -> None:
        self.n_configurable = n_configurable
        all_tied = np.zeros(n_configurable, np.int64)
        self._columns = TiedColumns(np.zeros(1, np.int64), all_tied)
        self._waiting: list[Words] = []  # (r, m, 9) of these columns
        # Of some rows their columns, the codes in them (f,), and which of these each has (r, m).
        self._chunks: list[tuple[TiedColumns, NDArray[np.int64], NDArray[Any]]] = []
        self._n_configs = 0  # of `_chunks`

    def add(self, content: bytes) -> None:
        """Add whole configs: r · k layout vectors of 18 float32; raises as `checked_codes`."""
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
        return PackedConfigs(Codebooks(codes, self._columns.group_of, vectors, sizes), indices)

    def _numbers(self, codes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield which of all codes each config has, by the columns that are distinct in the end."""
        for columns, found, own in self._chunks:
            yield np.searchsorted(codes, found)[own[:, columns.group_of[self._columns.first]]]


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    encoder = ConfigEncoder(values.shape[1])
    encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    return encoder.packed()
