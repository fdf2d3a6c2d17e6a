"""CRC-32 put together from parts equals zlib's of the whole."""

import zlib

import numpy as np
import pytest

from data.npz import crc32


def random_bytes(n_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng([seed, n_bytes]).bytes(n_bytes)


@pytest.mark.parametrize("n_bytes", [0, 1, 2, 3, 7, 72, 1000, 65_537, 1 << 20])
def test_zeros_behind_a_part_shift_its_linear_checksum(n_bytes: int) -> None:
    content = random_bytes(50)
    shifted = crc32.shift_by(n_bytes)(np.array([crc32.linear(content)], np.uint32))[0]
    assert shifted == crc32.linear(content + bytes(n_bytes))
    assert crc32.of_zeros(n_bytes) == zlib.crc32(bytes(n_bytes))


def test_shifts_in_a_row_are_one_shift() -> None:
    both = crc32.shift_by(72).then(crc32.shift_by(29))
    np.testing.assert_array_equal(both.images, crc32.shift_by(101).images)


@pytest.mark.parametrize("lengths", [(0, 0), (0, 9), (9, 0), (1, 1), (100, 36_000), (5, 1 << 17)])
def test_two_parts_combine_to_the_checksum_of_both(lengths: tuple[int, int]) -> None:
    before, after = (random_bytes(length, seed) for seed, length in enumerate(lengths))
    combined = crc32.combined(zlib.crc32(before), zlib.crc32(after), len(after))
    assert combined == zlib.crc32(before + after)


@pytest.mark.parametrize("n_parts", [0, 1, 2, 3, 43, 64, 65, 127, 128, 500])
def test_parts_in_a_row_give_the_checksum_of_all(n_parts: int) -> None:
    parts = [random_bytes(77, seed) for seed in range(n_parts)]
    each = np.array([crc32.linear(part) for part in parts], np.uint32)
    whole = b"".join(parts)
    assert crc32.in_a_row(each, 77) ^ crc32.of_zeros(len(whole)) == zlib.crc32(whole)
