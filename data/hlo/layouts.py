"""The configurable nodes of an HLO module, and the layout options of each.

Node positions count instructions in the order of the module's computations.

All orders of three rank-4 tensors would be 24 ** 3 rows per node. The options are only the orders
that kernels are written for. They differ in the place of the channel, the batch or the contracted
axis.
"""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.reproducibility import generator
from data.graphs.packing import N_TENSORS, n_usual
from data.hlo.choices import Choices, Space, draw_choices
from data.npz.archive import shown

CONFIGURABLE = ("convolution", "dot", "reshape")
MAX_RANK = 6

Order = tuple[int, ...]  # dimensions from major to minor
UNSET: Order = ()


class ConfigurableNode(NamedTuple):
    """An instruction whose layouts a config chooses."""

    position: int  # in the node list of the graph
    instruction: Any  # its message
    shapes: tuple[tuple[int, ...], ...]  # output, input and, except for reshapes, kernel


def _instructions(module: Any) -> list[Any]:
    return [i for computation in module.computations for i in computation.instructions]


def node_positions(module: Any, instructions: Sequence[Any]) -> NDArray[np.int64]:
    """Return the node positions (k,) of instructions of a module."""
    places = {instruction.id: place for place, instruction in enumerate(_instructions(module))}
    return np.array([places[instruction.id] for instruction in instructions], np.int64)


def configurable_nodes(module: Any) -> list[ConfigurableNode]:
    """Return the convolutions, dots and reshapes with a tensor that has two dimensions to order."""
    positions = [
        place
        for place, instruction in enumerate(_instructions(module))
        if instruction.opcode in CONFIGURABLE
    ]
    return [
        node
        for node in nodes_at(module, positions)
        if any(sum(size > 1 for size in shape) > 1 for shape in node.shapes)
    ]


def nodes_at(module: Any, positions: Sequence[int]) -> list[ConfigurableNode]:
    """Return the instructions at node positions, with the shapes of their tensors."""
    in_order = _instructions(module)
    by_id = {instruction.id: instruction for instruction in in_order}
    nodes = []
    for position in positions:
        instruction = in_order[position]
        tensors = [instruction, *(by_id[i] for i in instruction.operand_ids)]
        shapes = tuple(tuple(tensor.shape.dimensions) for tensor in tensors)
        nodes.append(ConfigurableNode(position, instruction, shapes))
    return nodes


def check_layouts(nodes: Sequence[ConfigurableNode], source: str) -> None:
    """Check that the layouts of configurable nodes fit into the dataset's format."""
    for node in nodes:
        if max(map(len, node.shapes)) > MAX_RANK:
            raise PipelineError(
                f"{source}: instruction '{shown(node.instruction.name)}' has a tensor with more "
                f"than {MAX_RANK} dimensions; the dataset's format has no room for its layout"
            )


def node_options(node: ConfigurableNode) -> NDArray[np.int8]:
    """Return the layout options of a node, (o, 18), int8. Row 0 leaves all to the compiler."""
    per_tensor = [
        [UNSET, *_distinct(orders, shape)]
        for orders, shape in zip(_orders(node), node.shapes, strict=True)
    ]
    rows = [spell_row(choice) for choice in product(*per_tensor)]
    return np.array(rows, np.int8)


def spell_row(orders: Sequence[Order]) -> list[int]:
    """Return the 18 values of a node, from the orders of its tensors."""
    triple = [*orders, *[UNSET] * (N_TENSORS - len(orders))]
    return [
        value for order in triple for value in [*reversed(order), *[-1] * (MAX_RANK - len(order))]
    ]


def read_row(row: NDArray[np.int8]) -> tuple[Order, Order, Order]:
    """Return the orders of output, input and kernel from the values of a node, (18,)."""
    output, operand, kernel = (
        tuple(int(v) for v in part[part >= 0][::-1]) for part in row.reshape(N_TENSORS, MAX_RANK)
    )
    return output, operand, kernel


def node_groups(nodes: Sequence[ConfigurableNode]) -> NDArray[np.int64]:
    """Return the group of each node, (k,), int64, by operation, shapes and dimension numbers."""

    def signature(node: ConfigurableNode) -> Hashable:
        instruction = node.instruction
        numbers = (instruction.dot_dimension_numbers, instruction.convolution_dimension_numbers)
        return (
            instruction.opcode,
            node.shapes,
            *(message.SerializeToString() for message in numbers),
        )

    return numbered([signature(node) for node in nodes])


def numbered(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Number keys from 0, (k,). Equal keys have the same number."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)


def candidate_configs(
    nodes: Sequence[ConfigurableNode], n_configs: int, *, seed: int
) -> NDArray[np.int8]:
    """Draw distinct configs (c, k, 18), int8. Config 0 leaves all layouts to the compiler.

    Nodes of one operation and shape take the same option in half of the draws. The last config is
    `usual_choice`.
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
    """Return the configs, (c, k, 18), of choices, (c, k), among the options of nodes, (o, 18)."""
    return np.stack([rows[choices[:, node]] for node, rows in enumerate(options)], axis=1)


def usual_choice(options: Sequence[NDArray[np.int8]]) -> Choices:
    """Return the (k,) choice with the largest number of usual layouts.

    Compilers mostly choose usual layouts. So this choice is rarely slower than the default. It is
    faster if unnamed layouts are lost, for example in the body of a loop.
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
    minor_swap = (*axes[:-2], *axes[-2:][::-1])
    return [axes, minor_swap, (*axes[1:], *axes[:1]), axes[::-1]]


def _dot_orders(numbers: Any, shapes: Sequence[Order]) -> list[list[Order]]:
    operands, n_free = [], []
    for side, shape in zip(("lhs", "rhs"), shapes[1:], strict=True):
        batch = tuple(getattr(numbers, f"{side}_batch_dimensions"))
        contracting = tuple(getattr(numbers, f"{side}_contracting_dimensions"))
        free = tuple(axis for axis in range(len(shape)) if axis not in (*batch, *contracting))
        n_free.append(len(free))
        orders = [batch + free + contracting, batch + contracting + free]
        operands.append(_with_batch_inside(orders, batch))
    n_batch = len(numbers.lhs_batch_dimensions)
    batch = tuple(range(n_batch))
    lhs = tuple(range(n_batch, n_batch + n_free[0]))
    rhs = tuple(range(n_batch + n_free[0], n_batch + sum(n_free)))
    output = _with_batch_inside([batch + lhs + rhs, batch + rhs + lhs], batch)
    return [output, *operands]


def _with_batch_inside(orders: list[Order], batch: Order) -> list[Order]:
    free = orders[0][len(batch) :]
    inside = [free[:1] + batch + free[1:]] if batch and free else []
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
