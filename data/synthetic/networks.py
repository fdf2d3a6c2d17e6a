"""Whole programs: convolutional, recurrent and transformer networks of a family and a size."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.synthetic import blocks
from data.synthetic.hlo import OPCODES, Program, ProgramBuilder

CONFIGURABLE = [OPCODES[name] for name in ("convolution", "dot", "reshape")]


@dataclass(frozen=True)
class Family:
    """What siblings of one architecture have in common; they differ in depth, width and batch.

    `width` is channels of the first stage (convolutional) or of the hidden state (others),
    `extent` the image side or the sequence length, `windows` the kernel sizes that take turns.
    """

    name: str
    kind: str
    width: int
    extent: int
    element_type: str = "f32"
    activation: str = "relu"
    windows: tuple[int, ...] = (3, 3)
    skip: str = "add"
    heads: int = 8
    centred: bool = True
    flatten: bool = False


@dataclass(frozen=True)
class LayoutProgram(Program):
    """A program and its k configurable nodes.

    Attributes:
        node_config_ids: (k,) int64 positions of convolutions, dots and reshapes, ascending.
    """

    node_config_ids: NDArray[np.int64]


@dataclass
class _Network:
    """A program in the making: its builder, reducers, weights so far and outputs so far."""

    b: ProgramBuilder
    adder: int
    maxer: int
    weights: list[int]
    outputs: list[int]


def _convolutional(net: _Network, family: Family, depth: int, width: int, batch: int) -> int:
    """Append `depth` blocks, with the image halved and the channels doubled three times."""
    b = net.b
    activate = blocks.ACTIVATIONS[family.activation]
    x = b.parameter((batch, family.extent, family.extent, 3), family.element_type)
    x = blocks.convolution(b, x, width, size=7, stride=2, weights=net.weights)
    halvings = {round(depth * part / 4) for part in (1, 2, 3)} - {0}
    for block in range(depth):
        stride = 2 if block in halvings and b.shape(x)[1] >= 8 else 1
        features = b.shape(x)[-1] * stride
        skip = x
        for turn, size in enumerate(family.windows):
            step = stride if turn == 0 else 1
            x = blocks.convolution(b, x, features, size=size, stride=step, weights=net.weights)
            x = activate(b, blocks.channel_norm(b, x))
        if family.skip == "add":
            if stride == 2:
                skip = blocks.convolution(b, skip, features, size=1, stride=2, weights=net.weights)
            x = blocks.binary(b, "add", x, skip)
        elif family.skip == "concatenate" and stride == 1:
            shape = (*b.shape(x)[:-1], 2 * features)
            x = b.add("concatenate", shape, (skip, x))
            x = blocks.convolution(b, x, features, size=1, stride=1, weights=net.weights)
        elif family.skip == "gate":
            x = blocks.binary(b, "multiply", x, _channel_gate(net, x))
    return _head(net, x, flatten=family.flatten)


def _channel_gate(net: _Network, x: int) -> int:
    """Append a squeeze-and-excite gate of NHWC `x`, broadcast to its shape."""
    b = net.b
    batch, _, _, channels = b.shape(x)
    squeezed = blocks.reduce(b, x, [1, 2], net.adder)
    narrow = blocks.relu(b, blocks.dense(b, squeezed, max(8, channels // 4), net.weights))
    gate = blocks.unary(b, "logistic", blocks.dense(b, narrow, channels, net.weights))
    spread = blocks.reshape(b, gate, (batch, 1, 1, channels))
    return blocks.broadcast(b, spread, b.shape(x), (0, 1, 2, 3))


def _head(net: _Network, x: int, *, flatten: bool) -> int:
    """Append a classifier over flattened or averaged NHWC `x`."""
    b = net.b
    batch, height, length, channels = b.shape(x)
    if flatten:
        x = blocks.crop(b, x, (batch, min(7, height), min(7, length), channels))
        x = blocks.reshape(b, x, (batch, min(7, height) * min(7, length) * channels))
        x = blocks.relu(b, blocks.dense(b, x, 1024, net.weights))
    else:
        x = blocks.reduce(b, x, [1, 2], net.adder)
    return blocks.softmax(b, blocks.dense(b, x, 1000, net.weights), net.adder, net.maxer)


def _recurrent(net: _Network, family: Family, depth: int, width: int, batch: int) -> int:
    """Append `depth` unrolled steps of a gated recurrent layer over a sequence's features."""
    b = net.b
    state = b.parameter((batch, width), family.element_type)
    frames = b.parameter((batch, family.extent, width), family.element_type)
    for _ in range(depth):
        frame = blocks.crop(b, frames, (batch, 1, width))
        x = blocks.dense(b, blocks.reshape(b, frame, (batch, width)), width, net.weights)
        hidden = blocks.dense(b, state, width, net.weights)
        gate = blocks.unary(b, "logistic", blocks.binary(b, "add", x, hidden))
        kept = blocks.binary(b, "multiply", gate, state)
        fresh = blocks.unary(b, "tanh", blocks.dense(b, kept, width, net.weights))
        state = blocks.binary(b, "add", kept, blocks.binary(b, "multiply", gate, fresh))
    logits = blocks.dense(b, state, 4 * width, net.weights)
    return blocks.softmax(b, logits, net.adder, net.maxer)


def _transformer(net: _Network, family: Family, depth: int, width: int, batch: int) -> int:
    """Append `depth` layers of self-attention and a two-layer perceptron."""
    b = net.b
    x = b.parameter((batch, family.extent, width), family.element_type)
    if family.flatten:
        x = blocks.reshape(b, x, (batch * family.extent, width))
    for _ in range(depth):
        attended = _attention(net, family, x, batch)
        x = blocks.binary(b, "add", x, attended)
        x = blocks.layer_norm(b, x, net.adder, centred=family.centred)
        inner = blocks.ACTIVATIONS[family.activation](b, blocks.dense(b, x, 4 * width, net.weights))
        x = blocks.binary(b, "add", x, blocks.dense(b, inner, width, net.weights))
        x = blocks.layer_norm(b, x, net.adder, centred=family.centred)
    return blocks.dense(b, x, 2 * width, net.weights)


def _attention(net: _Network, family: Family, x: int, batch: int) -> int:
    """Append multi-head self-attention of `x`, (batch, sequence, width) or its flat form."""
    b = net.b
    shape = b.shape(x)
    width, length, heads = shape[-1], family.extent, family.heads
    size = width // heads

    def split_heads() -> int:
        projected = blocks.dense(b, x, width, net.weights)
        parts = blocks.reshape(b, projected, (batch, length, heads, size))
        return blocks.transpose(b, parts, (0, 2, 1, 3))

    query = split_heads()
    key = split_heads()
    scores = b.add("dot", (batch, heads, length, length), (query, key))
    scores = blocks.binary(b, "multiply", scores, blocks.scalar_like(b, scores))
    weights = blocks.softmax(b, scores, net.adder, net.maxer)
    value = split_heads()
    mixed = b.add("dot", (batch, heads, length, size), (weights, value))
    mixed = blocks.transpose(b, mixed, (0, 2, 1, 3))
    return blocks.dense(b, blocks.reshape(b, mixed, shape), width, net.weights)


_KINDS: dict[str, Callable[[_Network, Family, int, int, int], int]] = {
    "convolutional": _convolutional,
    "recurrent": _recurrent,
    "transformer": _transformer,
}


def build_program(
    family: Family,
    *,
    depth: int,
    batch: int,
    width: int | None = None,
    n_nodes: int | None = None,
    n_configurable: int | None = None,
) -> LayoutProgram:
    """Build one program of `family`.

    Args:
        depth: number of blocks, layers or steps.
        width: channels or hidden size; the family's by default.
        n_nodes: exact node count, filled up with weight updates of an optimizer.
        n_configurable: how many of the candidates are configurable, evenly spread; all by default.

    Raises:
        PipelineError: the program has more nodes, or fewer candidates, than asked for.
    """
    b, adder, maxer = blocks.begin_program(family.element_type)
    net = _Network(b, adder, maxer, weights=[], outputs=[])
    net.outputs.append(_KINDS[family.kind](net, family, depth, width or family.width, batch))
    label = f"synthetic program {family.name} of depth {depth}"
    if n_nodes is not None and len(b.instructions) + 1 > n_nodes:
        raise PipelineError(
            f"{label}: has {len(b.instructions) + 1} nodes, more than the {n_nodes} asked for"
        )
    blocks.finish_program(b, net.outputs, net.weights, n_nodes)
    program = b.build()
    candidates = np.flatnonzero(np.isin(program.node_opcode, CONFIGURABLE)).astype(np.int64)
    wanted = len(candidates) if n_configurable is None else n_configurable
    if wanted > len(candidates):
        raise PipelineError(
            f"{label}: has {len(candidates)} configurable nodes, fewer than the {wanted} asked for"
        )
    picks = np.linspace(0, len(candidates) - 1, wanted).round().astype(np.int64)
    return LayoutProgram(**vars(program), node_config_ids=candidates[picks])


def depth_for(family: Family, *, max_nodes: int, width: int | None = None) -> int:
    """Return the greatest depth whose program has at most `max_nodes` nodes; at least 1."""
    depth = 1
    while (
        len(build_program(family, depth=depth + 1, batch=8, width=width).node_opcode) <= max_nodes
    ):
        depth += 1
    return depth
