"""Small HLO programs, instruction by instruction: networks of a family and a size, fused kernels.

The graph of a program is what `data.hlo` makes of any HLO module. Readers of a file see operands in
the order of their positions, so a weight always comes after the tensor that it multiplies.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from data.graphs.graph import TileGraph
from data.graphs.node_columns import ELEMENT_BYTES, ELEMENT_TYPE
from data.graphs.node_layouts import dimension_sizes
from data.hlo.descriptor import message_class
from data.hlo.graph import HloGraph, featurize_module

CONFIGURABLE = ("convolution", "dot", "reshape")
ELEMENT_NUMBERS = {"f32": 11, "tuple": 13, "bf16": 16}  # XLA's
# Sizes that tell siblings of a family apart, in the order in which they are made.
BATCHES = (8, 32, 16, 12, 64, 24, 4, 48)

LANES = 128  # of the accelerator that the cost models know

Shape = tuple[int, ...]
GraphArrays = HloGraph | TileGraph  # made here, or read from a file


def tensor_shapes(node_feat: NDArray[np.float32]) -> list[Shape]:
    """Recover each node's shape from (n, 140) features; scalars and tuples have shape ()."""
    return [tuple(v for v in row if v >= 0) for row in dimension_sizes(node_feat).tolist()]


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (n,) bytes per element of each node, 0 for tuples."""
    return np.array(ELEMENT_BYTES)[node_feat[:, ELEMENT_TYPE].argmax(axis=1)]


def operands_of(graph: GraphArrays) -> list[list[int]]:
    operands: list[list[int]] = [[] for _ in graph.node_opcode]
    for consumer, producer in graph.edge_index.tolist():
        operands[consumer].append(producer)
    return operands


class ProgramBuilder:
    """Appends instructions to an HLO module; a node is named by its position."""

    def __init__(self, element_type: str = "f32") -> None:  # of all arrays
        self.module = message_class("HloModuleProto")(name="synthetic")
        self.shapes: list[Shape] = []
        self.opcodes: list[str] = []
        self.weights: list[int] = []
        self._element_type = element_type
        self._reducers: dict[str, int] = {}
        self._computation = self._begin("cluster_main")

    def reducer(self, opcode: str) -> None:
        """Open the program with a computation of two scalars, for `reduce`."""
        self._computation.name = f"cluster_{opcode}"
        self.add(opcode, (), (self.parameter(()), self.parameter(())))
        self._reducers[opcode] = self._end()
        self._computation = self._begin("cluster_main")

    def _begin(self, name: str) -> Any:
        self._n_parameters = 0
        return self.module.computations.add(name=name, id=1 + len(self.module.computations))

    def _end(self) -> int:
        self._computation.root_id = len(self.shapes) - 1
        return int(self._computation.id)

    def add(
        self, opcode: str, shape: Sequence[int], operands: Sequence[int] = (), **fields: Any
    ) -> int:
        """Append an instruction, with further fields of its message; return its position."""
        node = len(self.shapes)
        message = self._computation.instructions.add(
            name=f"{opcode}.{node}", opcode=opcode, id=node, operand_ids=operands, **fields
        )
        kind = "tuple" if opcode == "tuple" else self._element_type
        message.shape.element_type = ELEMENT_NUMBERS[kind]
        message.shape.dimensions.extend(shape)
        message.shape.layout.minor_to_major.extend(reversed(range(len(shape))))
        self.shapes.append(tuple(shape))
        self.opcodes.append(opcode)
        return node

    def parameter(self, shape: Sequence[int]) -> int:
        """Append the computation's next parameter."""
        self._n_parameters += 1
        return self.add("parameter", shape, parameter_number=self._n_parameters - 1)

    def weight(self, shape: Sequence[int]) -> int:
        """Append a parameter that an optimizer updates."""
        self.weights.append(self.parameter(shape))
        return self.weights[-1]

    def map(self, opcode: str, *operands: int) -> int:
        """Append an elementwise instruction on operands of one shape."""
        return self.add(opcode, self.shapes[operands[0]], operands)

    def broadcast(self, x: int, shape: Shape, dimensions: Sequence[int]) -> int:
        """Append the broadcast of `x`, whose axes become `dimensions` of `shape`."""
        return self.add("broadcast", shape, (x,), dimensions=dimensions)

    def scalar_like(self, x: int) -> int:
        """Append a constant, broadcast to the shape of `x`."""
        return self.broadcast(self.add("constant", ()), self.shapes[x], ())

    def reduce(self, x: int, axes: Sequence[int], opcode: str = "add") -> int:
        """Append the reduction of `x` over `axes`, by one of the program's reducers."""
        shape = [size for axis, size in enumerate(self.shapes[x]) if axis not in axes]
        start = self.add("constant", ())
        called = [self._reducers[opcode]]
        return self.add("reduce", shape, (x, start), dimensions=axes, called_computation_ids=called)

    def reshape(self, x: int, shape: Shape) -> int:
        """Append `x` in a new shape of as many elements."""
        assert math.prod(self.shapes[x]) == math.prod(shape)
        return self.add("reshape", shape, (x,))

    def transpose(self, x: int, order: Sequence[int]) -> int:
        """Append the transposition of `x` to the axis order `order`."""
        shape = [self.shapes[x][axis] for axis in order]
        return self.add("transpose", shape, (x,), dimensions=order)

    def dense(self, x: int, width: int) -> int:
        """Append x · W + bias over the last axis."""
        shape = (*self.shapes[x][:-1], width)
        product = self.add("dot", shape, (x, self.weight((self.shapes[x][-1], width))))
        return self.map(
            "add", product, self.broadcast(self.weight((width,)), shape, (len(shape) - 1,))
        )

    def convolve(self, x: int, features: int, *, size: int = 3, stride: int = 1) -> int:
        """Append a same-size (or strided) convolution of NHWC `x` with an HWIO weight."""
        batch, height, width, channels = self.shapes[x]
        weight = self.weight((size, size, channels, features))
        dimension = message_class("WindowDimension")(
            size=size,
            stride=stride,
            padding_low=size // 2,
            padding_high=size // 2,
            window_dilation=1,
            base_dilation=1,
        )
        numbers = message_class("ConvolutionDimensionNumbers")(
            input_feature_dimension=3,
            output_feature_dimension=3,
            kernel_input_feature_dimension=2,
            kernel_output_feature_dimension=3,
            input_spatial_dimensions=(1, 2),
            output_spatial_dimensions=(1, 2),
            kernel_spatial_dimensions=(0, 1),
        )
        return self.add(
            "convolution",
            (batch, -(-height // stride), -(-width // stride), features),
            (x, weight),
            window=message_class("Window")(dimensions=[dimension, dimension]),
            convolution_dimension_numbers=numbers,
            feature_group_count=1,
            batch_group_count=1,
        )

    def softmax(self, x: int) -> int:
        """Append a softmax over the last axis."""
        last = len(self.shapes[x]) - 1
        others, shape = range(last), self.shapes[x]
        peak = self.broadcast(self.reduce(x, [last], "maximum"), shape, others)
        powers = self.map("exponential", self.map("subtract", x, peak))
        total = self.broadcast(self.reduce(powers, [last]), shape, others)
        return self.map("divide", powers, total)

    def attend(self, x: int, heads: int) -> int:
        """Append multi-head self-attention of `x` (batch, sequence, width)."""
        batch, length, width = self.shapes[x]
        query, key = self._split_heads(x, heads), self._split_heads(x, heads)
        scores = self.softmax(self.add("dot", (batch, heads, length, length), (query, key)))
        value = self._split_heads(x, heads)
        mixed = self.add("dot", (batch, heads, length, width // heads), (scores, value))
        joined = self.reshape(self.transpose(mixed, (0, 2, 1, 3)), (batch, length, width))
        return self.dense(joined, width)

    def _split_heads(self, x: int, heads: int) -> int:
        batch, length, width = self.shapes[x]
        parts = self.reshape(self.dense(x, width), (batch, length, heads, width // heads))
        return self.transpose(parts, (0, 2, 1, 3))

    def finish(self) -> HloGraph:
        """Close the program, whose root is its last instruction, and return its graph."""
        self.module.entry_computation_id = self._end()
        return featurize_module(self.module)


Block = Callable[[ProgramBuilder, int], int]


def _scale(b: ProgramBuilder, x: int) -> int:
    for opcode in ("multiply", "add"):
        shape = b.shapes[x]
        x = b.map(opcode, x, b.broadcast(b.weight(shape[-1:]), shape, (len(shape) - 1,)))
    return x


def _gate(b: ProgramBuilder, x: int) -> int:
    batch, _, _, channels = b.shapes[x]
    gate = b.map("logistic", b.dense(b.reduce(x, [1, 2]), channels))
    spread = b.reshape(gate, (batch, 1, 1, channels))
    return b.map("multiply", x, b.broadcast(spread, b.shapes[x], range(4)))


def _normalise(b: ProgramBuilder, x: int) -> int:
    last = len(b.shapes[x]) - 1
    root = b.map("rsqrt", b.reduce(b.map("multiply", x, x), [last]))
    return _scale(b, b.map("multiply", x, b.broadcast(root, b.shapes[x], range(last))))


def _perceptron(b: ProgramBuilder, x: int) -> int:
    width = b.shapes[x][-1]
    return b.dense(b.map("tanh", b.dense(x, 4 * width)), width)


BLOCKS: dict[str, Block] = {
    "conv1": lambda b, x: b.convolve(x, b.shapes[x][-1], size=1),
    "conv3": lambda b, x: b.convolve(x, b.shapes[x][-1]),
    "conv5": lambda b, x: b.convolve(x, b.shapes[x][-1], size=5),
    "widen": lambda b, x: b.convolve(x, 2 * b.shapes[x][-1], size=1),
    "narrow": lambda b, x: b.convolve(x, b.shapes[x][-1] // 2, size=1),
    "scale": _scale,
    "relu": lambda b, x: b.map("maximum", x, b.scalar_like(x)),
    "swish": lambda b, x: b.map("multiply", x, b.map("logistic", x)),
    "gate": _gate,
    "attend4": lambda b, x: b.attend(x, 4),
    "attend8": lambda b, x: b.attend(x, 8),
    "perceptron": _perceptron,
    "normalise": _normalise,
}


class Family(NamedTuple):
    """What siblings of one architecture have in common; they differ in depth, width and batch."""

    name: str
    layer: str  # names in BLOCKS, and "add", which adds what entered the layer
    width: int  # channels or hidden size
    extent: int  # the image side or the sequence length
    is_image: bool = True  # whether the input is an image, else a sequence
    element_type: str = "f32"  # or "bf16"


_TEXT = "attend8 add normalise perceptron add"
FAMILIES: dict[tuple[str, str], tuple[Family, ...]] = {
    ("xla", "train"): (
        Family("resnet_like", "conv3 scale relu conv3 scale relu add", 64, 56),
        Family("vgg_like", "conv3 relu conv3 relu", 48, 64),
        Family("mobile_like", "widen scale swish conv3 swish narrow add", 32, 56),
        Family("gated_like", "conv3 scale relu gate add", 48, 48, element_type="bf16"),
    ),
    ("xla", "valid"): (
        Family("inception_like", "conv1 scale relu conv5 scale relu add", 48, 64),
        Family("wide_like", "widen relu narrow scale relu", 96, 48),
    ),
    ("xla", "test"): (
        Family("dense_like", "conv1 relu conv3 scale add", 64, 48),
        Family("efficient_like", "widen swish gate narrow add", 40, 56),
    ),
    ("nlp", "train"): (
        Family("bert_like", _TEXT, 512, 128, False),
        Family("albert_like", "normalise attend8 add perceptron", 768, 64, False),
        Family("gpt_like", "normalise attend8 add perceptron add", 640, 256, False, "bf16"),
        Family("electra_like", "attend4 perceptron add normalise", 256, 128, False),
    ),
    ("nlp", "valid"): (
        Family("roberta_like", f"{_TEXT} normalise", 384, 128, False),
        Family("opt_like", "attend4 add perceptron add", 512, 192, False),
    ),
    ("nlp", "test"): (
        Family("t5_like", "attend8 normalise perceptron normalise", 512, 96, False),
        Family("deberta_like", "attend4 add normalise perceptron", 768, 128, False),
    ),
}


def sibling(source: str, split: str, number: int) -> tuple[Family, int]:
    """Return a family of a split in a width, and a batch; each number has another of these.

    The first ones have each family's own width; after all batches are used up, widths grow.
    """
    families = FAMILIES[source, split]
    growth, turn = divmod(number // len(families), len(BATCHES))
    family = families[number % len(families)]
    return family._replace(width=family.width * (1 + growth)), BATCHES[turn]


@dataclass(frozen=True)
class LayoutProgram(HloGraph):
    """A program's graph and its configurable nodes: (k,) int64 positions, ascending."""

    node_config_ids: NDArray[np.int64]


def sized_program(
    n_nodes: int, n_configurable: int, family: Family, batch: int = 8
) -> LayoutProgram:
    """Build a program of exactly so many nodes, as shallow as its configurable ones allow.

    Those are evenly spread among all that could be. An optimizer's updates of weights fill it up.

    Raises:
        UsageError: the nodes are too few for that many configurable ones.
    """
    one, two = (len(_candidates(_network(family, depth, batch))) for depth in (1, 2))
    b = _network(family, 1 + max(0, -(-(n_configurable - one) // (two - one))), batch)
    if len(b.shapes) + 1 > n_nodes:
        raise UsageError(
            f"a program with {n_configurable} configurable nodes has {len(b.shapes) + 1} nodes, "
            f"more than the {n_nodes} asked for"
        )
    candidates = _candidates(b)
    _update_weights(b, n_nodes - 1 - len(b.shapes))
    picks = np.linspace(0, len(candidates) - 1, n_configurable).round().astype(np.int64)
    return LayoutProgram(**vars(b.finish()), node_config_ids=candidates[picks])


def _candidates(b: ProgramBuilder) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(b.opcodes, CONFIGURABLE))


def _network(family: Family, depth: int, batch: int) -> ProgramBuilder:
    b = ProgramBuilder(family.element_type)
    for opcode in ("add", "maximum"):
        b.reducer(opcode)
    if family.is_image:
        x = b.parameter((batch, family.extent, family.extent, 3))
        x = b.convolve(x, family.width, size=7, stride=2)
    else:
        x = b.parameter((batch, family.extent, family.width))
    for _ in range(depth):
        start = x
        for name in family.layer.split():
            x = b.map("add", x, start) if name == "add" else BLOCKS[name](b, x)
    pooled = b.reduce(x, [1, 2]) if family.is_image else x
    b.softmax(b.dense(pooled, 2 * family.width))
    return b


def _update_weights(b: ProgramBuilder, n_nodes: int) -> None:
    outputs = [len(b.shapes) - 1]
    weights, last = list(b.weights), 0
    for step in range(n_nodes):
        weight = weights[(step // 3) % len(weights)]
        if step % 3 == 0:
            last = b.parameter(b.shapes[weight])
        elif step % 3 == 1:
            last = b.map("multiply", last, last)
        else:
            outputs.append(b.map("subtract", weight, last))
    b.add("tuple", (), outputs)


WIDTHS = (48, 64, 100, 128, 192, 256, 384, 512, 768, 1000, 1024)


def sized_kernel(n_nodes: int, rng: np.random.Generator) -> HloGraph:
    """Draw one fused kernel of so many nodes, 2 at least, that can be tiled in many ways."""
    b = ProgramBuilder("f32" if rng.random() < 0.7 else "bf16")
    x = b.parameter((64, *rng.choice([28, 56], 2).tolist(), 1024))
    if n_nodes > 6:
        features = int(rng.choice(WIDTHS))
        x = b.dense(x, features) if rng.random() < 0.5 else b.convolve(x, features)
    while len(b.shapes) < n_nodes:
        room = n_nodes - len(b.shapes)
        if room >= 3 and rng.random() < 0.5:
            x = b.map("multiply", x, b.scalar_like(x))
        else:
            x = b.map("tanh", x)
    return b.finish()
