"""Layouts as small integers: every symbol and every pair of minor dimensions has its own."""

import itertools

import numpy as np

from features.layout_codes import N_CODES, minor_codes

VALUES = range(-1, 6)


def test_each_pair_of_minor_dimensions_has_its_own_code() -> None:
    """A table of all pairs, counted up by hand."""
    pairs = list(itertools.product(VALUES, VALUES))
    values = np.full((len(pairs), 6), 3, dtype=np.int8)
    values[:, :2] = pairs
    codes = minor_codes(values)
    assert codes.dtype == np.int8
    assert codes[:, 0].tolist() == list(range(N_CODES))


def test_only_the_two_minor_dimensions_of_each_tensor_count() -> None:
    values = np.arange(18).reshape(1, 1, 18) % 7 - 1
    codes = minor_codes(values.astype(np.int8))
    assert codes.shape == (1, 1, 3)
    for tensor in range(3):
        first, second = values[0, 0, 6 * tensor : 6 * tensor + 2]
        assert codes[0, 0, tensor] == 7 * (first + 1) + second + 1
    changed = values.copy()
    changed[..., [2, 3, 4, 5, 8, 11, 14, 17]] = 0
    np.testing.assert_array_equal(minor_codes(changed.astype(np.int8)), codes)
