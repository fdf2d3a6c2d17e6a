"""Access to a layout graph's configs by row, without saying how they are stored.

Everything downstream asks for rows; `data.packing` holds them, in memory or mapped from a file.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ConfigColumns:
    """Which configurable nodes are tied, and the few layout vectors that each takes.

    Attributes:
        column_of: (k,) int64 which of m columns a node is in; nodes of one column have equal
            layouts in every config.
        vectors: (m, a) int64 the distinct vectors that a column takes, as numbers of the graph's;
            filled up with 0.
        sizes: (m,) int64 how many vectors each column takes.
    """

    column_of: NDArray[np.int64]
    vectors: NDArray[np.int64]
    sizes: NDArray[np.int64]


class LayoutConfigs(Protocol):
    """Configs of one layout graph: c configs of k nodes with 18 layout values each."""

    @property
    def n_configs(self) -> int:
        """Return c."""

    @property
    def n_configurable(self) -> int:
        """Return k."""

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the configs at `index` (r,) as (r, k, 18) int8, in that order."""

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return (c,) uint64; equal configs have equal hashes, on every machine."""

    @property
    def vectors(self) -> NDArray[np.int8]:
        """Return (u, 18) int8, the distinct layout vectors of the graph."""

    def vector_ids(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of `vectors` each node has in the configs at `index` (r,); (r, k) int64."""

    @property
    def columns(self) -> ConfigColumns:
        """Return the columns that hold all configs."""

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of its column's vectors each column has; (r, m) int64 below a."""


def hash_rows(table: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Hash each row of `table` (c, …) by its bytes; (c,) uint64.

    BLAKE2b shortened to 64 bits: for 100,000 configs a collision has a chance of 3e-10.
    """
    contiguous = np.ascontiguousarray(table)
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in contiguous)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def distinct_rows(
    hashes: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs.

    Args:
        hashes: (c,) uint64 content hashes.

    Returns:
        first: (u,) int64, the first row of each distinct config, ascending.
        group: (c,) int64, which distinct config each row is: hashes[first[group]] == hashes.
    """
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order].astype(np.int64), rank[group].astype(np.int64)
