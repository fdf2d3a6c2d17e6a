"""CRC-32 as a linear map, so that checksums can be put together from those of parts.

Without its initial and final inversion, CRC-32 is linear over bits: the checksum of an exclusive or
is the exclusive or of the checksums, leading zeros do not count, and what follows a part shifts its
checksum by a matrix that depends on the length alone. zlib's crc32_combine is built on the same.
"""

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0xEDB88320  # bits in reversed order, as zip has it
BITS = np.arange(32, dtype=np.uint32)
SHIFTED_AT_ONCE = 256

Checksums = NDArray[np.uint32]


class Shift:
    """What a number of zero bytes behind it does to a linear checksum: a matrix over bits.

    Args:
        images: (32,) uint32, what becomes of each single bit.
    """

    def __init__(self, images: Checksums) -> None:
        self.images = images

    @functools.cached_property
    def _tables(self) -> NDArray[np.uint32]:
        """Return (4, 256) uint32: what becomes of each byte at each place, by its value."""
        tables = np.zeros((4, 256), np.uint32)
        for bit in range(8):  # values with this highest bit: those below it, and its own image
            tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] ^ self.images[bit::8, None]
        return tables

    @functools.cached_property
    def _lists(self) -> list[list[int]]:
        """Return the tables for one checksum at a time, where arrays cost more."""
        lists: list[list[int]] = self._tables.tolist()
        return lists

    def of_one(self, checksum: int) -> int:
        """Shift one linear checksum."""
        first, second, third, fourth = self._lists
        return (
            first[checksum & 255]
            ^ second[checksum >> 8 & 255]
            ^ third[checksum >> 16 & 255]
            ^ fourth[checksum >> 24]
        )

    def __call__(self, checksums: Checksums) -> Checksums:
        """Shift linear checksums of any shape; uint32."""
        first, second, third, fourth = self._tables
        return (
            first[checksums & 255]
            ^ second[checksums >> 8 & 255]
            ^ third[checksums >> 16 & 255]
            ^ fourth[checksums >> 24]
        )

    def then(self, other: "Shift") -> "Shift":
        """Return the shift by both lengths together."""
        return Shift(other(self.images))


@functools.lru_cache(maxsize=256)
def shift_by(n_bytes: int) -> Shift:
    """Return the shift by `n_bytes` zero bytes; made of powers of two, log2(n) products."""
    if n_bytes == 0:
        return Shift(np.uint32(1) << BITS)
    if n_bytes == 1:
        images = np.uint32(1) << BITS
        for _ in range(8):
            images = images >> np.uint32(1) ^ (images & np.uint32(1)) * np.uint32(POLYNOMIAL)
        return Shift(images)
    half = shift_by(n_bytes // 2)
    doubled = half.then(half)
    return doubled.then(shift_by(1)) if n_bytes % 2 else doubled


@functools.lru_cache(maxsize=256)
def of_zeros(n_bytes: int) -> int:
    """Return the CRC-32 of `n_bytes` zero bytes: what a linear checksum lacks to be one."""
    ones = 0xFFFFFFFF
    return shift_by(n_bytes).of_one(ones) ^ ones


def linear(content: bytes) -> int:
    """Return the linear checksum of some bytes."""
    return zlib.crc32(content) ^ of_zeros(len(content))


def combined(before: int, after: int, n_bytes_after: int) -> int:
    """Return the CRC-32 of two parts in a row, from that of each."""
    return shift_by(n_bytes_after).of_one(before) ^ after


def in_a_row(checksums: Checksums, n_bytes: int) -> int:
    """Return the linear checksum of parts (r,) of `n_bytes` each, one behind the other.

    Many are joined two by two; of the rest, each set bit is shifted to its place by one look-up.
    """
    while len(checksums) > SHIFTED_AT_ONCE:
        if len(checksums) % 2:
            checksums = np.concatenate([np.zeros(1, np.uint32), checksums])
        checksums = shift_by(n_bytes)(checksums[::2]) ^ checksums[1::2]
        n_bytes *= 2
    images = images_in_a_row(len(checksums), n_bytes)
    return int(np.bitwise_xor.reduce(images * bits_of(checksums), axis=None))


def bits_of(checksums: Checksums) -> NDArray[np.uint8]:
    """Return the (r, 32) bits of checksums (r,), the lowest first."""
    as_bytes = checksums.astype("<u4").view(np.uint8)
    return np.unpackbits(as_bytes, bitorder="little").reshape(-1, 32)


@functools.lru_cache(maxsize=16)
def images_in_a_row(n_parts: int, n_bytes: int) -> Checksums:
    """Return (r, 32) uint32: what each bit of each part becomes by all that follows it.

    The last part is followed by nothing.
    """
    images = np.uint32(1) << BITS[None]  # from the last part on
    while len(images) < n_parts:
        images = np.concatenate([images, shift_by(n_bytes * len(images))(images)])
    return images[:n_parts][::-1]
