"""The padding is restored exactly: every layout is a permutation of 0..rank-1, then -1."""

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.node_columns import dimension_sizes, minor_to_major, tensor_ranks
from data.read import read_graph
from data.tree import GraphFile
from tests.real_data import real_files, requires_real_data


def slow_rank(node: NDArray[np.float32]) -> int:
    """Count dimensions by the layout: the longest list that is a permutation."""
    layout = [int(value) for value in node[134:140]]
    largest = max(layout)
    if largest > 0:
        return largest + 1
    return 1 if node[21] > 0 else 0


def check(node_feat: NDArray[np.float32]) -> None:
    ranks, layouts = tensor_ranks(node_feat), minor_to_major(node_feat)
    sizes = dimension_sizes(node_feat)
    assert (ranks.dtype, layouts.dtype, sizes.dtype) == (np.int64, np.int8, np.int64)
    for node, rank, layout, size in zip(
        node_feat, ranks.tolist(), layouts.tolist(), sizes.tolist(), strict=True
    ):
        assert rank == slow_rank(node)
        assert sorted(layout[:rank]) == list(range(rank))
        assert layout[:rank] == [int(value) for value in node[134 : 134 + rank]]
        assert size[:rank] == [int(value) for value in node[21 : 21 + rank]]
        assert layout[rank:] == size[rank:] == [-1] * (6 - rank)
        # Nothing that the stock features say is lost beyond the rank.
        assert not node[134 + rank : 140].any()
        assert not node[21 + rank : 27].any()


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_every_node_of_every_real_file(file: GraphFile) -> None:
    node_feat = read_graph(file).node_feat
    check(node_feat)
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
