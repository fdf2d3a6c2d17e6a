"""Groups of instructions that networks repeat: normalisation, activation, attention, updates.

`b` is the builder to which they append; nodes are named by position. Cost models and readers see
only sorted edges, so a weight is always appended after the tensor that it multiplies.
"""

import math
from collections.abc import Sequence

from data.synthetic.hlo import (
    DIMENSIONS,
    SLICE_LIMIT,
    SLICE_START,
    SLICE_STRIDE,
    TUPLE_SIZE,
    ProgramBuilder,
)
from data.synthetic.hlo import convolution_details as window_details


def begin_program(element_type: str) -> tuple[ProgramBuilder, int, int]:
    """Return a builder that holds the two reducers, and their roots: of add, of maximum."""
    b = ProgramBuilder()
    roots = []
    for opcode in ("add", "maximum"):
        left = b.parameter((), element_type)
        right = b.parameter((), element_type)
        b.add(opcode, (), (left, right))
        roots.append(b.end_computation())
    return b, roots[0], roots[1]


def unary(b: ProgramBuilder, opcode: str, x: int) -> int:
    """Append an elementwise instruction of one operand."""
    return b.add(opcode, b.shape(x), (x,))


def binary(b: ProgramBuilder, opcode: str, x: int, y: int) -> int:
    """Append an elementwise instruction of two operands of one shape."""
    return b.add(opcode, b.shape(x), (x, y))


def broadcast(b: ProgramBuilder, x: int, shape: Sequence[int], dimensions: Sequence[int]) -> int:
    """Append the broadcast of `x`, whose axes become `dimensions` of `shape`."""
    return b.add("broadcast", shape, (x,), details={DIMENSIONS: dimensions})


def scalar_like(b: ProgramBuilder, x: int) -> int:
    """Append a scalar constant, broadcast to the shape of `x`."""
    kind = b.instructions[x].element_type
    constant = b.add("constant", (), element_type=kind)
    return broadcast(b, constant, b.shape(x), ())


def reduce(b: ProgramBuilder, x: int, axes: Sequence[int], reducer: int) -> int:
    """Append the reduction of `x` over `axes`; `reducer` is the root of its computation."""
    shape = [size for axis, size in enumerate(b.shape(x)) if axis not in axes]
    kind = b.instructions[x].element_type
    start = b.add("constant", (), element_type=kind)
    return b.add("reduce", shape, (x, start, reducer), details={DIMENSIONS: axes})


def transpose(b: ProgramBuilder, x: int, order: Sequence[int]) -> int:
    """Append the transposition of `x` to the axis order `order`."""
    shape = [b.shape(x)[axis] for axis in order]
    return b.add("transpose", shape, (x,), details={DIMENSIONS: order})


def reshape(b: ProgramBuilder, x: int, shape: Sequence[int]) -> int:
    """Append `x` in a new shape of as many elements."""
    assert math.prod(b.shape(x)) == math.prod(shape)
    return b.add("reshape", shape, (x,))


def crop(b: ProgramBuilder, x: int, shape: Sequence[int]) -> int:
    """Append the leading part of `x`; slice columns hold two sizes, their sum and product."""
    details = {}
    for column, values in (
        (SLICE_START, [0] * len(shape)),
        (SLICE_STRIDE, [1] * len(shape)),
        (SLICE_LIMIT, list(shape)),
    ):
        head = [*values[:2], *[0] * (2 - len(values[:2]))]
        details[column] = [*head, sum(values), math.prod(values)]
    return b.add("slice", shape, (x,), details=details)


def dense(b: ProgramBuilder, x: int, width: int, weights: list[int]) -> int:
    """Append x · W + bias, where x ends in the contracted axis; note the weight."""
    kind = b.instructions[x].element_type
    weight = b.parameter((b.shape(x)[-1], width), kind)
    weights.append(weight)
    shape = (*b.shape(x)[:-1], width)
    product = b.add("dot", shape, (x, weight))
    bias = broadcast(b, b.parameter((width,), kind), shape, (len(shape) - 1,))
    return binary(b, "add", product, bias)


def convolution(
    b: ProgramBuilder, x: int, features: int, *, size: int, stride: int, weights: list[int]
) -> int:
    """Append a same-size (or strided) convolution of NHWC `x` with an HWIO weight."""
    batch, *spatial, channels = b.shape(x)
    window = [min(size, axis) for axis in spatial]
    weight = b.parameter((*window, channels, features), b.instructions[x].element_type)
    weights.append(weight)
    shape = (batch, *[-(-axis // stride) for axis in spatial], features)
    return b.add("convolution", shape, (x, weight), details=window_details(window, stride=stride))


def channel_norm(b: ProgramBuilder, x: int) -> int:
    """Append a scale and a shift per channel, as batch normalisation is compiled for serving."""
    kind = b.instructions[x].element_type
    axis = len(b.shape(x)) - 1
    for opcode in ("multiply", "add"):
        parameter = b.parameter(b.shape(x)[-1:], kind)
        x = binary(b, opcode, x, broadcast(b, parameter, b.shape(x), (axis,)))
    return x


def layer_norm(b: ProgramBuilder, x: int, adder: int, *, centred: bool) -> int:
    """Append layer (or, not centred, root mean square) normalisation over the last axis."""
    axis = len(b.shape(x)) - 1
    others = list(range(axis))
    if centred:
        mean = broadcast(b, reduce(b, x, [axis], adder), b.shape(x), others)
        x = binary(b, "subtract", x, mean)
    variance = reduce(b, binary(b, "multiply", x, x), [axis], adder)
    scale = broadcast(b, unary(b, "rsqrt", variance), b.shape(x), others)
    return channel_norm(b, binary(b, "multiply", x, scale))


def softmax(b: ProgramBuilder, x: int, adder: int, maxer: int) -> int:
    """Append a softmax over the last axis."""
    axis = len(b.shape(x)) - 1
    others = list(range(axis))
    peak = broadcast(b, reduce(b, x, [axis], maxer), b.shape(x), others)
    powers = unary(b, "exponential", binary(b, "subtract", x, peak))
    total = broadcast(b, reduce(b, powers, [axis], adder), b.shape(x), others)
    return binary(b, "divide", powers, total)


def gelu(b: ProgramBuilder, x: int) -> int:
    """Append the tanh form of the Gaussian error linear unit."""
    cube = binary(b, "multiply", binary(b, "multiply", x, x), x)
    inner = binary(b, "add", x, binary(b, "multiply", cube, scalar_like(b, x)))
    gate = binary(b, "add", unary(b, "tanh", inner), scalar_like(b, x))
    return binary(b, "multiply", x, gate)


def relu(b: ProgramBuilder, x: int) -> int:
    """Append max(x, 0)."""
    return binary(b, "maximum", x, scalar_like(b, x))


def swish(b: ProgramBuilder, x: int) -> int:
    """Append x · logistic(x)."""
    return binary(b, "multiply", x, unary(b, "logistic", x))


ACTIVATIONS = {"gelu": gelu, "relu": relu, "swish": swish}


def finish_program(
    b: ProgramBuilder, outputs: list[int], weights: Sequence[int], n_nodes: int | None
) -> None:
    """Append an optimizer's weight updates and the root tuple, to exactly `n_nodes` if given.

    Without `n_nodes`, each weight gets one update of three instructions.
    """
    outputs = list(outputs)
    room = n_nodes - 1 - len(b.instructions) if n_nodes is not None else 3 * len(weights)
    last = weights[0]
    for step in range(room):
        weight = weights[(step // 3) % len(weights)]
        kind = b.instructions[weight].element_type
        if step % 3 == 0:
            last = b.parameter(b.shape(weight), kind)
        elif step % 3 == 1:
            last = binary(b, "multiply", last, last)
        else:
            outputs.append(binary(b, "subtract", weight, last))
    b.add(
        "tuple",
        (),
        outputs,
        element_type="tuple",
        details={TUPLE_SIZE: (len(outputs),)},
    )
    b.end_computation()
