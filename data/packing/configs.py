"""Packed configs by row: the indices in memory or mapped from a file; c configs of k nodes.

A config's content hash is equal on every machine and however configs are stored: the sum, modulo
2^64, of one random-looking number for each node's layout vector (multilinear hashing, Carter and
Wegman 1979, with a mixing function for the random table). Two different configs agree with a chance
of about 2^-64; for 100,000 configs that is 3e-10 in all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from data.packing.vectors import N_SYMBOLS, N_VALUES, decoded

HASHED_AT_ONCE = 1 << 18  # indices, which take sixteen times as much memory on the way
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
MIX_TWO = np.uint64(0x94D049BB133111EB)

# Told which array is wrong, by its field of the graph, and how; raises a PipelineError.
Fail = Callable[[str, str], NoReturn]


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


@dataclass(frozen=True)
class PackedConfigs:
    """All configs of one layout graph: a table of distinct layout vectors, and indices into it.

    Attributes:
        alphabets: what an index means, by column.
        indices: (c, m) unsigned; columns that are tied to each other are stored once.
    """

    alphabets: Alphabets
    indices: NDArray[Any]

    @property
    def n_configs(self) -> int:
        return self.indices.shape[0]

    @property
    def n_configurable(self) -> int:
        return len(self.alphabets.column_of)

    @cached_property
    def vectors(self) -> NDArray[np.int8]:
        """Return (u, 18) int8, the distinct layout vectors of the graph."""
        return decoded(self.alphabets.codes)

    def vector_ids(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of `vectors` each node has in the configs at `index` (r,); (r, k) int64."""
        vectors = self.alphabets.vectors
        places = self.places(index) + np.arange(len(vectors)) * vectors.shape[1]
        return vectors.reshape(-1).take(places).take(self.alphabets.column_of, axis=1)

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
        alphabets = self.alphabets
        shape = alphabets.vectors.shape
        added: NDArray[np.uint64] = np.zeros(shape, np.uint64)  # by column and index
        for node, column in enumerate(alphabets.column_of):
            size = alphabets.sizes[column]
            codes = alphabets.codes[alphabets.vectors[column, :size]]
            added[column, :size] += vector_hashes(np.array([node]), codes)
        starts = np.arange(len(added)) * added.shape[1]
        hashes = np.empty(self.n_configs, np.uint64)
        step = max(1, HASHED_AT_ONCE // max(1, len(added)))
        for start in range(0, self.n_configs, step):
            places = self.indices[start : start + step] + starts
            hashes[start : start + step] = added.reshape(-1).take(places).sum(1, dtype=np.uint64)
        return hashes


def check_packed(configs: PackedConfigs, fail: Fail) -> None:
    """Check that every index means a layout vector; dtypes and numbers of axes are right already.

    `fail` is told the name of an array as it stands in the store.
    """
    codes = configs.alphabets.codes
    n_columns, width = configs.alphabets.vectors.shape
    in_order = (np.diff(codes) > 0).all()
    if not len(codes) or not in_order or codes[0] < 0 or codes[-1] >= N_SYMBOLS**N_VALUES:
        fail("vector_codes", "are no ascending numbers of layout vectors")
    limits = (
        ("column_of", configs.alphabets.column_of, n_columns),
        ("column_vectors", configs.alphabets.vectors, len(codes)),
        ("column_sizes", configs.alphabets.sizes - 1, width),
    )
    for name, values, limit in limits:
        if ((values < 0) | (values >= limit)).any():
            fail(name, f"holds a number that is none of the {limit} there are")
    step = max(1, HASHED_AT_ONCE // max(1, n_columns))
    for start in range(0, configs.n_configs, step):
        if (configs.indices[start : start + step] >= configs.alphabets.sizes).any():
            fail("config_indices", f"hold a vector that its column does not, from row {start} on")


def vector_hashes(nodes: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return what each layout vector adds to the hash of a config; uint64.

    Args:
        nodes: positions 0..k-1 of configurable nodes, of a shape that broadcasts with `codes`.
        codes: the vectors in base 7, see `data.packing.vectors`.
    """
    with np.errstate(over="ignore"):
        salted = _mixed(nodes.astype(np.uint64) * GOLDEN + GOLDEN)
        return _mixed(salted ^ (codes.astype(np.uint64) * GOLDEN))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * MIX_ONE
    values = (values ^ (values >> np.uint64(27))) * MIX_TWO
    return values ^ (values >> np.uint64(31))
