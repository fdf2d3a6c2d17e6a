"""The names of the 140 columns, and layouts without their padding, against real files."""

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.node_columns import (
    CATEGORICAL,
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    NODE_FEATURE_NAMES,
    dimension_sizes,
    minor_to_major,
)
from data.read import read_graph
from data.tree import GraphFile
from tests.support.real_data import real_files, requires_real_data


def test_there_are_140_names_and_each_once() -> None:
    assert len(NODE_FEATURE_NAMES) == len(set(NODE_FEATURE_NAMES)) == 140
    assert NODE_FEATURE_NAMES[0] == "is_root"


def test_an_elements_bytes_are_those_of_its_name() -> None:
    for kind, n_bytes in zip(ELEMENT_TYPES, ELEMENT_BYTES, strict=True):
        bits = "".join(filter(str.isdigit, kind))
        assert n_bytes == (int(bits) // 8 if bits else int(kind == "pred")), kind


def test_sizes_counts_and_products_are_not_categorical() -> None:
    numeric = {NODE_FEATURE_NAMES[i] for i in range(140) if i not in CATEGORICAL}
    assert {"shape_dimensions_0", "window_size_3", "slice_dims_limit_1"} <= numeric
    assert not {"is_root", "is_stable", "layout_minor_to_major_5", "dimensions_0"} & numeric


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_every_node_of_every_real_file(file: GraphFile) -> None:
    node_feat = read_graph(file).node_feat
    # The stock sum and product go over the dimensions, which tells the rank a second time.
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
