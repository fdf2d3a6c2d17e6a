"""Layouts as small integers: every symbol and every pair of minor dimensions has its own."""

import itertools

import numpy as np

from data.packing import N_CODES, minor_codes

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
    values = (np.arange(18) % 7 - 1).astype(np.int8).reshape(1, 1, 18)
    want = [7 * (first + 1) + second + 1 for first, second in values.reshape(3, 6)[:, :2].tolist()]
    assert minor_codes(values).tolist() == [[want]]
    values.reshape(3, 6)[:, 2:] = 0
    assert minor_codes(values).tolist() == [[want]]
