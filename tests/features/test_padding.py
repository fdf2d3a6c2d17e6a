"""Layouts without their padding, against real files, and codes of minor dimensions."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graph_store.stored_graph import read_graph
from data.graphs.node_columns import COLUMN_OF
from data.graphs.packing import N_CODES
from data.hlo import graph as hlo_graph
from data.hlo.programs import read_programs
from data.tree import GraphFile
from features.padding import dimension_sizes, minor_codes, minor_to_major, node_features
from tests.features.hlo_modules import ModuleBuilder
from tests.support.real_data import REAL, real_files, requires_real_data

VALUES = range(-1, 6)
INPUT_SPATIAL = "convolution_dim_numbers_input_spatial_dims_0"
KERNEL_SPATIAL = "convolution_dim_numbers_kernel_spatial_dims_0"


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
        # Layouts that end with -1 already stay.
        ([1, 0, 2, -1, -1, -1], [3, 4, 5], [1, 0, 2]),
        ([-1] * 6, [], []),
    ],
)
def test_ranks_from_zero_to_six(layout: list[int], sizes: list[int], want: list[int]) -> None:
    node_feat = node(layout, sizes)
    pad = [-1] * (6 - len(want))
    assert minor_to_major(node_feat)[0].tolist() == want + pad
    assert dimension_sizes(node_feat)[0].tolist() == sizes + pad


def test_each_pair_of_minor_dimensions_has_its_own_code() -> None:
    """Dimensions beyond the two minor ones of a tensor do not count."""
    pairs = list(itertools.product(VALUES, VALUES))
    values = np.full((len(pairs), 12), 3, dtype=np.int8)
    values[:, :2], values[:, 6:8] = pairs, pairs[::-1]
    codes = minor_codes(values)
    assert codes.dtype == np.int8
    assert codes.T.tolist() == [list(range(N_CODES)), list(range(N_CODES))[::-1]]


def padded_by_protobuf(instructions, stock: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pad as the winners' featurizer did, which reads the lists of the protobuf."""
    expected = stock.copy()
    for row, instruction in zip(expected, instructions, strict=True):
        numbers = instruction.convolution_dimension_numbers
        for name, width, dimensions in (
            ("dimensions_0", 6, instruction.dimensions),
            (INPUT_SPATIAL, 4, numbers.input_spatial_dimensions),
            (KERNEL_SPATIAL, 4, numbers.kernel_spatial_dimensions),
        ):
            values = [*dimensions][:width]
            start = COLUMN_OF[name]
            row[start : start + width] = [*values, *[-1] * (width - len(values))]
    return expected


@requires_real_data
@pytest.mark.parametrize("name", ["module_tuning_data_layout", "op_tuning_data"])
def test_minus_one_padding_equals_that_of_the_protobuf(name: str, monkeypatch) -> None:
    featurized, featurize = [], hlo_graph.node_features

    def watched(instructions, roots):
        featurized.append((instructions, featurize(instructions, roots)))
        return featurized[-1][1]

    monkeypatch.setattr(hlo_graph, "node_features", watched)
    programs = read_programs(REAL / "pb" / f"{name}.pb")
    assert len(programs) == len(featurized)
    for program, (instructions, stock) in zip(programs, featurized, strict=True):
        expected = padded_by_protobuf(instructions, stock)
        assert node_features(program.graph, "zero") is program.graph.node_feat
        np.testing.assert_array_equal(node_features(program.graph, "minus_one"), expected)


def test_the_length_of_a_dimension_list_follows_from_the_operation() -> None:
    build = ModuleBuilder()
    build.computation("main")
    x = build.add("parameter", shape=(4, 8, 3))
    scalar = build.add("parameter")
    build.add("transpose", x, shape=(3, 8, 4), dimensions=[2, 1, 0])
    build.add("broadcast", scalar, shape=(4,))
    row = build.add("reduce", x, scalar, shape=(3,), dimensions=[0, 1])
    build.add("broadcast", row, shape=(3, 2), dimensions=[0])
    build.add("reduce", x, scalar, shape=(), dimensions=[2, 1, 0])
    build.add("concatenate", row, row, shape=(6,), dimensions=[0])
    build.add("add", row, row, shape=(3,))
    graph = hlo_graph.featurize_module(build.module)
    instructions = build.module.computations[0].instructions
    expected = padded_by_protobuf(instructions, graph.node_feat)
    np.testing.assert_array_equal(node_features(graph, "minus_one"), expected)
