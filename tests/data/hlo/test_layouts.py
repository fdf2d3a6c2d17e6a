"""Layout options of nodes and candidate configs, against enumerations of the possible orders."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from data.graphs.packing import n_usual
from data.hlo.layouts import (
    candidate_configs,
    configurable_nodes,
    node_groups,
    node_options,
    node_positions,
    nodes_at,
    read_row,
    spell_row,
)
from tests.ensembles.programs import dense_module
from tests.features.hlo_modules import ModuleBuilder, small_module

Shape = tuple[int, ...]


def reshaping(*shapes: Shape) -> Any:
    """A module that reshapes an array to each of some shapes in turn."""
    build = ModuleBuilder("reshapes")
    build.computation("main")
    last = build.add("parameter", shape=shapes[0])
    for shape in shapes[1:]:
        last = build.add("reshape", last, shape=shape)
    return build.module


def effect(order: Shape, shape: Shape) -> Shape:
    """The order of the dimensions that have several elements; others change no address."""
    return tuple(axis for axis in order if shape[axis] > 1)


@pytest.mark.parametrize(
    "module",
    [
        dense_module(),
        small_module(deepest=6),
        reshaping((1, 8, 16), (8, 1, 16), (8, 16, 1, 1), (1, 2, 4, 16)),
    ],
    ids=["dots", "convolution", "sizes of 1"],
)
def test_options_are_orders_with_distinct_effects(module: Any) -> None:
    for node in configurable_nodes(module):
        options = [read_row(row)[: len(node.shapes)] for row in node_options(node)]
        assert not any(options[0])
        effects = [
            tuple(effect(order, shape) for order, shape in zip(orders, node.shapes, strict=True))
            for orders in options
        ]
        assert len(set(effects)) == len(effects)
        for orders in options:
            for order, shape in zip(orders, node.shapes, strict=True):
                assert not order or tuple(sorted(order)) == tuple(range(len(shape)))
        # The row-major order of each tensor with an order is among the options.
        for place, shape in enumerate(node.shapes):
            taken = {orders[place] for orders in options}
            assert (tuple(range(len(shape))) in taken) == (sum(n > 1 for n in shape) > 1)


def test_kernels_are_written_for_these_orders() -> None:
    """Of a dot without a batch: both operands contract inside or outside, and the plain order."""
    product, _, batched = configurable_nodes(dense_module())
    orders = [{read_row(row)[tensor] for row in node_options(product)} for tensor in range(3)]
    assert orders == [{(), (0, 1), (1, 0)}] * 3
    # Batch axis 0, rows 1, columns 2: the contracted axes are 2 on the left and 1 on the right.
    orders = [{read_row(row)[tensor] for row in node_options(batched)} for tensor in range(3)]
    batch_outside, batch_inside = {(0, 1, 2), (0, 2, 1)}, {(1, 0, 2)}
    assert orders == [
        {()} | batch_outside | batch_inside,
        {()} | batch_outside | batch_inside,
        {()} | batch_outside | {(2, 0, 1)},
    ]


def test_orders_of_a_convolution_move_channels_and_batch() -> None:
    (node,) = (n for n in configurable_nodes(small_module()) if len(n.shapes) == 3)
    image, kernel = ({read_row(row)[place] for row in node_options(node)} for place in (1, 2))
    # Batch 0, window 1 and 2, channels 3; in the kernel window 0 and 1, input 2, output 3.
    assert image == {(), (0, 1, 2, 3), (0, 3, 1, 2), (1, 2, 0, 3), (3, 1, 2, 0)}
    assert kernel == {(), (0, 1, 2, 3), (0, 1, 3, 2), (3, 2, 0, 1)}


def test_a_row_has_minor_to_major_orders_of_three_tensors() -> None:
    for orders in permutations([(), (1, 0, 2), (0, 1)]):
        row = spell_row(orders)
        for order, values in zip(orders, np.reshape(row, (3, 6)).tolist(), strict=True):
            assert values == [*reversed(order), *[-1] * (6 - len(order))]
        assert read_row(np.array(row, np.int8)) == orders
    assert spell_row([(0, 1)]) == [1, 0, *[-1] * 16]


@pytest.mark.parametrize("n_configs", [1, 2, 7, 10_000])
def test_candidates_are_distinct_and_end_with_the_usual_choice(n_configs: int) -> None:
    nodes = configurable_nodes(reshaping((4, 6), (6, 4), (24, 1)))
    options = [node_options(node) for node in nodes]
    n_choices = int(np.prod([len(rows) for rows in options]))
    assert n_choices == 3 * 3 * 3
    configs = candidate_configs(nodes, n_configs, seed=1)
    assert configs.shape == (min(n_configs, n_choices), len(nodes), 18)
    assert (configs[0] == -1).all()
    assert len(np.unique(configs, axis=0)) == len(configs)
    for of_node, rows in zip(configs.transpose(1, 0, 2), options, strict=True):
        assert {row.tobytes() for row in of_node} <= {row.tobytes() for row in rows}
    most = sum(max(n_usual(rows)) for rows in options)
    assert (max(n_usual(config).sum() for config in configs) == most) == (n_configs > 1)
    if 1 < n_configs < n_choices:
        assert n_usual(configs[-1]).sum() == most
    again, other = (candidate_configs(nodes, n_configs, seed=seed) for seed in (1, 2))
    assert np.array_equal(again, configs)
    assert n_configs != 7 or not np.array_equal(other, configs)


def test_positions_count_the_instructions_of_all_computations() -> None:
    module = small_module()
    names = [i.name for computation in module.computations for i in computation.instructions]
    for node in configurable_nodes(module):
        assert names[node.position] == node.instruction.name
        assert nodes_at(module, [node.position]) == [node]
        assert node_positions(module, [node.instruction]).tolist() == [node.position]


def test_equal_operations_of_equal_shapes_are_a_group() -> None:
    module = reshaping((4, 6), (6, 4), (4, 6), (6, 4), (24, 1))
    assert node_groups(configurable_nodes(module)).tolist() == [0, 1, 0, 2]
