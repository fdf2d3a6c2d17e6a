"""Layouts without their padding, against real files, and codes of minor dimensions."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graph_store.stored_graph import read_graph
from data.graphs.packing import (
    N_CODES,
)
from data.tree import GraphFile
from features.padding import dimension_sizes, minor_codes, minor_to_major
from tests.support.real_data import real_files, requires_real_data

VALUES = range(-1, 6)


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_every_node_of_every_real_file(file: GraphFile) -> None:
    node_feat = read_graph(file).node_feat
    # The stored sum and product cover only real dimensions, so they confirm the rank.
    sizes = dimension_sizes(node_feat)
    inside = sizes >= 0
    np.testing.assert_array_equal(np.where(inside, sizes, 0).sum(axis=1), node_feat[:, 27])
    products = np.where(inside, sizes, 1).prod(axis=1)
    has_dimension = inside.any(axis=1)
    np.testing.assert_allclose(products[has_dimension], node_feat[has_dimension, 28], rtol=1e-6)


def node(layout: list[int], sizes: list[int]) -> NDArray[np.float32]:
    node_feat = np.zeros((1, 140), dtype=np.float32)
    node_feat[0, 134 : 134 + len(layout)] = layout
    node_feat[0, 21 : 21 + len(sizes)] = sizes
    return node_feat


@pytest.mark.parametrize(
    ("layout", "sizes", "want"),
    [
        ([], [], []),
        ([0], [5], [0]),
        ([1, 0], [3, 4], [1, 0]),
        ([1, 0, 2], [3, 4, 5], [1, 0, 2]),
        ([0, 1], [0, 4], [0, 1]),  # an empty tensor keeps its rank
        ([1, 0], [4, 0], [1, 0]),
        ([5, 4, 3, 2, 1, 0], [1] * 6, [5, 4, 3, 2, 1, 0]),
    ],
)
def test_ranks_from_zero_to_six(layout: list[int], sizes: list[int], want: list[int]) -> None:
    node_feat = node(layout, sizes)
    pad = [-1] * (6 - len(want))
    assert minor_to_major(node_feat)[0].tolist() == want + pad
    assert dimension_sizes(node_feat)[0].tolist() == sizes + pad


def test_padding_with_minus_one_restores_to_itself() -> None:
    stock, already = node([1, 0, 2], [3, 4, 5]), node([1, 0, 2, -1, -1, -1], [3, 4, 5])
    np.testing.assert_array_equal(minor_to_major(already), minor_to_major(stock))
    assert minor_to_major(node([-1] * 6, []))[0].tolist() == [-1] * 6


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
