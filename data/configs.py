"""Access to a layout graph's configs by row, without saying how they are stored.

Everything downstream asks for rows; today they are held as int8 in memory (a quarter of the
file's float32), and a packed, memory-mapped store can take that place without changes elsewhere.
"""

import hashlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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


class InMemoryLayoutConfigs:
    """All configs of one graph in one (c, k, 18) int8 array."""

    def __init__(self, values: NDArray[np.int8]) -> None:
        self._values = values

    @property
    def n_configs(self) -> int:
        """Return c."""
        return self._values.shape[0]

    @property
    def n_configurable(self) -> int:
        """Return k."""
        return self._values.shape[1]

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the configs at `index` (r,) as (r, k, 18) int8, in that order."""
        return self._values[index]

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return (c,) uint64; equal configs have equal hashes, on every machine."""
        return hash_rows(self._values.reshape(self.n_configs, -1))


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
