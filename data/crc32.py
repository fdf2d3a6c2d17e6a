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
        values = np.arange(256, dtype=np.uint32)
        tables = np.zeros((4, 256), np.uint32)  # by byte and its value
        for bit in range(32):
            tables[bit // 8] ^= (values >> np.uint32(bit % 8) & np.uint32(1)) * images[bit]
        self._tables = tables
        self._lists = tables.tolist()  # for one checksum at a time, where arrays cost more

    def of_one(self, checksum: int) -> int:
        """Shift one linear checksum."""
        first, second, third, fourth = self._lists
        return int(
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
    bits = np.unpackbits(checksums.astype("<u4").view(np.uint8), bitorder="little")
    images = _images_in_a_row(len(checksums), n_bytes)
    return int(np.bitwise_xor.reduce(images * bits))


@functools.lru_cache(maxsize=16)
def _images_in_a_row(n_parts: int, n_bytes: int) -> Checksums:
    """Return (32 r,) uint32: what each bit of each part becomes by all that follows it."""
    images = [np.uint32(1) << BITS]
    for _ in range(n_parts - 1):
        images.append(shift_by(n_bytes)(images[-1]))
    return np.concatenate(images[::-1]) if n_parts else np.empty(0, np.uint32)
