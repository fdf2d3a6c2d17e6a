"""Equal configs, found by content."""

import hashlib

import numpy as np
from numpy.typing import NDArray


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
