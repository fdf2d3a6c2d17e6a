"""The configurable nodes of an HLO module, and the layouts that each may be given.

Node positions count instructions in the order of the module's computations.

Every order of a rank-4 tensor for three tensors would be 24 ** 3 rows a node; the options are the
orders that kernels are written for: where the channel, the batch or the contracted axis lies.
"""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.reproducibility import generator
from data.graphs.packing import N_TENSORS, n_usual
from data.hlo.choices import Choices, Space, draw_choices

CONFIGURABLE = ("convolution", "dot", "reshape")
MAX_RANK = 6

Order = tuple[int, ...]  # major to minor: dimensions as they lie in memory, outermost first
UNSET: Order = ()


class ConfigurableNode(NamedTuple):
    """An instruction whose layouts a config chooses."""

    position: int  # of its node in the graph
    instruction: Any  # its message
    shapes: tuple[tuple[int, ...], ...]  # of output, input and, but for reshapes, kernel


def _instructions(module: Any) -> list[Any]:
    return [given for computation in module.computations for given in computation.instructions]


def node_positions(module: Any, instructions: Sequence[Any]) -> NDArray[np.int64]:
    """Return the node positions (k,) of some instructions of a module."""
    places = {given.id: place for place, given in enumerate(_instructions(module))}
    return np.array([places[given.id] for given in instructions], np.int64)


def configurable_nodes(module: Any) -> list[ConfigurableNode]:
    """Return the convolutions, dots and reshapes of which a tensor has two dimensions to order."""
    found = [
        place for place, given in enumerate(_instructions(module)) if given.opcode in CONFIGURABLE
    ]
    return [
        node
        for node in nodes_at(module, found)
        if any(sum(size > 1 for size in shape) > 1 for shape in node.shapes)
    ]


def nodes_at(module: Any, positions: Sequence[int]) -> list[ConfigurableNode]:
    """Return the instructions at some node positions with the shapes of their tensors."""
    in_order = _instructions(module)
    by_id = {instruction.id: instruction for instruction in in_order}
    nodes = []
    for position in positions:
        instruction = in_order[position]
        tensors = [instruction, *(by_id[i] for i in instruction.operand_ids)]
        shapes = tuple(tuple(tensor.shape.dimensions) for tensor in tensors)
        nodes.append(ConfigurableNode(position, instruction, shapes))
    return nodes


def node_options(node: ConfigurableNode) -> NDArray[np.int8]:
    """Return the (o, 18) int8 rows that `node` may be given; row 0 leaves all to the compiler."""
    per_tensor = [
        [UNSET, *_distinct(orders, shape)]
        for orders, shape in zip(_orders(node), node.shapes, strict=True)
    ]
    rows = [spell_row(choice) for choice in product(*per_tensor)]
    return np.array(rows, np.int8)


def spell_row(orders: Sequence[Order]) -> list[int]:
    """Return the 18 values of a node from major-to-minor orders of its tensors; see `read_row`."""
    padded = [*orders, *[UNSET] * (N_TENSORS - len(orders))]
    return [
        value for order in padded for value in [*reversed(order), *[-1] * (MAX_RANK - len(order))]
    ]


def read_row(row: NDArray[np.int8]) -> tuple[Order, Order, Order]:
    """Return the major-to-minor orders of output, input and kernel that a (18,) row holds."""
    output, operand, kernel = (
        tuple(int(v) for v in part[part >= 0][::-1]) for part in row.reshape(N_TENSORS, MAX_RANK)
    )
    return output, operand, kernel


def node_groups(nodes: Sequence[ConfigurableNode]) -> NDArray[np.int64]:
    """Return (k,) int64: nodes of equal operation, shapes and dimension numbers share a group."""

    def signature(node: ConfigurableNode) -> Hashable:
        given = node.instruction
        numbers = (given.dot_dimension_numbers, given.convolution_dimension_numbers)
        return (given.opcode, node.shapes, *(message.SerializeToString() for message in numbers))

    return numbered([signature(node) for node in nodes])


def numbered(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number for each of some keys, (k,) from 0 on; equal ones share theirs."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def candidate_configs(
    nodes: Sequence[ConfigurableNode], n_configs: int, *, seed: int
) -> NDArray[np.int8]:
    """Draw distinct layout configs of k nodes; config 0 leaves all to the compiler.

    Each node gets layouts that kernels are written for (`node_options`); nodes of one operation and
    shape do alike half of the time, as in the searches that measure. The last config names all
    usual layouts (`usual_choice`).

    Returns:
        (c, k, 18) int8, c at most `n_configs`.
    """
    options = [node_options(node) for node in nodes]
    n_options = np.array([len(rows) for rows in options], np.int64)
    space = Space(n_options, node_groups(nodes))
    choices = draw_choices(space, n_configs, generator(seed, "candidates"))
    usual = usual_choice(options)
    if len(choices) > 1 and not (choices == usual).all(axis=1).any():
        choices[-1] = usual
    return spell_choices(options, choices)


def spell_choices(options: Sequence[NDArray[np.int8]], choices: Choices) -> NDArray[np.int8]:
    """Return choices (c, k) among the options of k nodes, (o, 18) each, as configs (c, k, 18)."""
    return np.stack([rows[choices[:, node]] for node, rows in enumerate(options)], axis=1)


def usual_choice(options: Sequence[NDArray[np.int8]]) -> Choices:
    """Return the (k,) choice that names as many usual layouts as there are, given nodes' options.

    It asks for what a compiler mostly does by itself: rarely slower than to leave all to it, and
    faster where layouts that nobody names are lost, as in a loop's body.
    """
    return np.array([n_usual(rows).argmax() for rows in options], np.int64)


def _distinct(orders: Sequence[Order], shape: Order) -> list[Order]:
    if len(shape) > MAX_RANK or sum(size > 1 for size in shape) < 2:
        return []
    by_effect: dict[Order, Order] = {}
    for order in orders:
        by_effect.setdefault(tuple(axis for axis in order if shape[axis] > 1), order)
    return list(by_effect.values())


def _orders(node: ConfigurableNode) -> list[list[Order]]:
    if node.instruction.opcode == "dot":
        return _dot_orders(node.instruction.dot_dimension_numbers, node.shapes)
    if node.instruction.opcode == "convolution":
        return _convolution_orders(node.instruction.convolution_dimension_numbers)
    return [_plain_orders(len(shape)) for shape in node.shapes]


def _plain_orders(rank: int) -> list[Order]:
    axes = tuple(range(rank))
    swapped = (*axes[:-2], *axes[-2:][::-1])
    return [axes, swapped, (*axes[1:], *axes[:1]), axes[::-1]]


def _dot_orders(numbers: Any, shapes: Sequence[Order]) -> list[list[Order]]:
    operands, n_free = [], []
    for side, shape in zip(("lhs", "rhs"), shapes[1:], strict=True):
        shared = tuple(getattr(numbers, f"{side}_batch_dimensions"))
        summed = tuple(getattr(numbers, f"{side}_contracting_dimensions"))
        free = tuple(axis for axis in range(len(shape)) if axis not in (*shared, *summed))
        n_free.append(len(free))
        orders = [shared + free + summed, shared + summed + free]
        operands.append(_with_batch_inside(orders, shared))
    n_batch = len(numbers.lhs_batch_dimensions)
    shared = tuple(range(n_batch))
    left = tuple(range(n_batch, n_batch + n_free[0]))
    right = tuple(range(n_batch + n_free[0], n_batch + sum(n_free)))
    output = _with_batch_inside([shared + left + right, shared + right + left], shared)
    return [output, *operands]


def _with_batch_inside(orders: list[Order], shared: Order) -> list[Order]:
    rest = orders[0][len(shared) :]
    inside = [rest[:1] + shared + rest[1:]] if shared and rest else []
    return [*orders, tuple(range(len(orders[0]))), *inside]


def _convolution_orders(numbers: Any) -> list[list[Order]]:
    def activations(tensor: str) -> list[Order]:
        batch = getattr(numbers, f"{tensor}_batch_dimension")
        feature = getattr(numbers, f"{tensor}_feature_dimension")
        window = tuple(getattr(numbers, f"{tensor}_spatial_dimensions"))
        return [
            (batch, *window, feature),
            (batch, feature, *window),
            (*window, batch, feature),
            (feature, *window, batch),
        ]

    inner, outer = numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension
    window = tuple(numbers.kernel_spatial_dimensions)
    kernel = [(*window, inner, outer), (*window, outer, inner), (outer, inner, *window)]
    return [activations("output"), activations("input"), kernel]
