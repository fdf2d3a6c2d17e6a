"""Content hashes against the formula in Python's integers; they never change and never collide."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.packing.config_encoder import pack_values
from data.packing.configs import vector_hashes
from data.packing.vectors import vector_codes
from tests.data.packing.references import (
    encoded,
    random_vectors,
    reference_hash,
    reference_mix,
)

STEADY = settings(deadline=None, derandomize=True, max_examples=100)
CODES = st.integers(0, 7**18 - 1)
TABLES = st.integers(1, 5).flatmap(
    lambda n_nodes: st.lists(
        st.lists(CODES, min_size=n_nodes, max_size=n_nodes), min_size=1, max_size=6
    )
)


def hashes_of(codes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Sum what the vectors of each config add: codes (c, k) to (c,) hashes."""
    return vector_hashes(np.arange(codes.shape[1]), codes).sum(axis=1, dtype=np.uint64)


@STEADY
@given(TABLES)
def test_hashes_are_those_of_the_formula(codes: list[list[int]]) -> None:
    hashes = hashes_of(np.asarray(codes, np.int64))
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [reference_hash(config) for config in codes]


def test_mixing_is_the_published_function() -> None:
    """The first outputs of splitmix64 from the seed 1234567, as its users test it."""
    golden = 0x9E3779B97F4A7C15
    outputs = [reference_mix((1234567 + n * golden) % 2**64) for n in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_equal_configs_have_equal_hashes_in_whatever_company() -> None:
    """Other rows bring other vectors, other ties, other columns; chunks come in other sizes."""
    rng = np.random.default_rng(0)
    ours = np.repeat(random_vectors(rng, 20, 3), [3, 1, 4], axis=1)
    want = pack_values(ours).content_hashes()
    for n_others, n_letters in ((1, 1), (50, 3), (400, 400)):
        others = random_vectors(rng, n_letters)[rng.integers(n_letters, size=(n_others, 8))]
        mixed = np.concatenate([others, ours[::-1], others, ours])
        for rows_per_chunk in (7, len(mixed)):
            hashes = encoded(mixed, rows_per_chunk=rows_per_chunk).content_hashes()
            np.testing.assert_array_equal(hashes[-20:], want)
            np.testing.assert_array_equal(hashes[n_others : n_others + 20], want[::-1])
    for row in range(20):
        assert pack_values(ours[row : row + 1]).content_hashes()[0] == want[row]


def test_random_configs_do_not_collide() -> None:
    codes = np.random.default_rng(2).integers(0, 7**18, (200_000, 6))
    assert len(np.unique(hashes_of(codes))) == len(codes)


def test_all_configs_of_few_vectors_do_not_collide() -> None:
    """Nearly equal configs, moved ones and exchanged ones among them."""
    vectors = np.full((12, 18), -1, np.int8)
    vectors[np.arange(1, 12), np.arange(11)] = 0  # each differs from the first in one value by 1
    codes = vector_codes(vectors)[np.asarray(list(itertools.product(range(12), repeat=5)))]
    assert len(codes) == 12**5 > 200_000
    assert len(np.unique(hashes_of(codes))) == len(codes)


def test_each_change_of_one_value_changes_the_hash() -> None:
    values = np.zeros((1 + 30 * 18 * 6, 30, 18), np.int8)
    changes = itertools.product(range(30), range(18), (-1, 1, 2, 3, 4, 5))
    for row, (node, place, value) in enumerate(changes, start=1):
        values[row, node, place] = value
    assert len(np.unique(pack_values(values).content_hashes())) == len(values)
