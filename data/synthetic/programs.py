"""Small HLO programs: networks of a family and a size, and fused kernels.

`data.hlo` makes the graph of a program, as for any HLO module. Readers of a file see operands in
the order of their positions, so a weight always comes after the tensor that it multiplies.
"""

import csv
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from common.errors import UsageError
from data.hlo.descriptor import message_class
from data.hlo.graph import HloGraph, featurize_module
from data.hlo.layouts import CONFIGURABLE

ELEMENT_NUMBERS = {"f32": 11, "tuple": 13, "bf16": 16}  # XLA's
ELEMENT_SIZES = {"f32": 4, "bf16": 2}  # bytes
KERNEL_WIDTHS = (256, 384, 512, 768, 1000, 1024)
# Batch sizes of the siblings of a family, in order.
BATCHES = (8, 32, 16, 12, 64, 24, 4, 48)

Shape = tuple[int, ...]


class Program:
    """A program or kernel of n nodes, to which methods append instructions. A node is its position.

    Attributes:
        shapes: Output shape of each node; () for scalars and tuples.
        operands: Positions of each node's operands, ascending.
        node_config_ids: Positions of the configurable nodes, (k,), ascending.
    """

    def __init__(self, element_type: str = "f32") -> None:
        self.module = message_class("HloModuleProto")(name="synthetic", entry_computation_id=1)
        self.shapes: list[Shape] = []
        self.opcodes: list[str] = []
        self.operands: list[list[int]] = []
        self.weights: list[int] = []
        self.n_parameters = 0
        self.node_config_ids = np.zeros(0, np.int64)
        self.element_bytes = ELEMENT_SIZES[element_type]
        self._element_type = element_type
        self._computation = self.module.computations.add(name="cluster_main", id=1)

    @cached_property
    def graph(self) -> HloGraph:
        """Return the graph of the finished program, with its last instruction as the root."""
        self._computation.root_id = len(self.shapes) - 1
        return featurize_module(self.module)

    def add(
        self, opcode: str, shape: Sequence[int], operands: Sequence[int] = (), **fields: Any
    ) -> int:
        """Append an instruction."""
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
        self.operands.append(sorted(set(operands)))
        return node

    def parameter(self, shape: Sequence[int]) -> int:
        self.n_parameters += 1
        return self.add("parameter", shape, parameter_number=self.n_parameters - 1)

    def weight(self, shape: Sequence[int]) -> int:
        self.weights.append(self.parameter(shape))
        return self.weights[-1]

    def map(self, opcode: str, *operands: int) -> int:
        return self.add(opcode, self.shapes[operands[0]], operands)

    def broadcast(self, x: int, shape: Shape, dimensions: Sequence[int] = ()) -> int:
        """Append the broadcast of `x`, whose axes become `dimensions` of `shape`."""
        return self.add("broadcast", shape, (x,), dimensions=dimensions)

    def dense(self, x: int, width: int) -> int:
        """Append x · W + bias over the last axis."""
        shape = (*self.shapes[x][:-1], width)
        product = self.add("dot", shape, (x, self.weight((self.shapes[x][-1], width))))
        bias = self.broadcast(self.weight((width,)), shape, (len(shape) - 1,))
        return self.map("add", product, bias)

    def convolve(self, x: int, features: int, *, size: int = 3, stride: int = 1) -> int:
        """Append a same-size (or strided) convolution of NHWC `x` with an HWIO weight."""
        batch, height, width, channels = self.shapes[x]
        weight = self.weight((size, size, channels, features))
        side = {"size": size, "stride": stride, "window_dilation": 1, "base_dilation": 1}
        side |= {"padding_low": size // 2, "padding_high": size // 2}
        numbers = {"input_feature_dimension": 3, "output_feature_dimension": 3}
        numbers |= {"kernel_input_feature_dimension": 2, "kernel_output_feature_dimension": 3}
        return self.add(
            "convolution",
            (batch, -(-height // stride), -(-width // stride), features),
            (x, weight),
            window={"dimensions": [side, side]},
            convolution_dimension_numbers={
                **numbers,
                "input_spatial_dimensions": (1, 2),
                "output_spatial_dimensions": (1, 2),
                "kernel_spatial_dimensions": (0, 1),
            },
            feature_group_count=1,
            batch_group_count=1,
        )

    def gate(self, x: int) -> int:
        """Append max(x, 0) · x."""
        zeros = self.broadcast(self.add("constant", ()), self.shapes[x])
        return self.map("multiply", self.map("maximum", x, zeros), x)

    def split(self, x: int, parts: int) -> int:
        """Append a reshape that splits the last axis of `x`, a dense layer, and a reshape back."""
        *outer, width = self.shapes[x]
        heads = self.add("reshape", (*outer, parts, width // parts), (x,))
        return self.add("reshape", self.shapes[x], (self.dense(heads, width // parts),))


BLOCKS: dict[str, Callable[[Program, int], int]] = {
    "conv1": lambda b, x: b.convolve(x, b.shapes[x][-1], size=1),
    "conv3": lambda b, x: b.convolve(x, b.shapes[x][-1]),
    "conv5": lambda b, x: b.convolve(x, b.shapes[x][-1], size=5),
    "widen": lambda b, x: b.convolve(x, 2 * b.shapes[x][-1], size=1),
    "narrow": lambda b, x: b.convolve(x, b.shapes[x][-1] // 2, size=1),
    "dense": lambda b, x: b.dense(x, b.shapes[x][-1]),
    "grow": lambda b, x: b.dense(x, 4 * b.shapes[x][-1]),
    "shrink": lambda b, x: b.dense(x, b.shapes[x][-1] // 4),
    "split4": lambda b, x: b.split(x, 4),
    "split8": lambda b, x: b.split(x, 8),
    "tanh": lambda b, x: b.map("tanh", x),
    "gate": lambda b, x: b.gate(x),
}


class Family(NamedTuple):
    """The common traits of one architecture's siblings, which differ in depth, width and batch."""

    source: str  # "xla" for networks on images, "nlp" for networks on sequences
    split: str
    name: str
    width: int  # channels or hidden size
    extent: int  # the image side or the sequence length
    element_type: str  # "f32" or "bf16"
    layer: str  # names in BLOCKS, and "add", which adds the layer's input


def _read_families() -> dict[tuple[str, str], list[Family]]:
    lines = Path(__file__).with_name("families.tsv").read_text(encoding="utf-8").splitlines()
    rows = TypeAdapter(list[Family]).validate_python(list(csv.DictReader(lines, delimiter="\t")))
    return {part: list(families) for part, families in groupby(rows, lambda row: row[:2])}


FAMILIES = _read_families()  # by source and split


def sibling(source: str, split: str, number: int) -> tuple[Family, int]:
    """Return a family and a batch. Each number gives another family, width or batch."""
    families = FAMILIES[source, split]
    growth, turn = divmod(number // len(families), len(BATCHES))
    family = families[number % len(families)]
    return family._replace(width=family.width * (1 + growth)), BATCHES[turn]


def sized_program(n_nodes: int, n_configurable: int, family: Family, batch: int = 8) -> Program:
    """Build a program of exactly `n_nodes` nodes, as shallow as its configurable nodes allow.

    The configurable nodes are evenly distributed among all candidates. An optimizer's updates of
    weights fill the program up. Too few nodes raise a UsageError.
    """
    shallow, deeper = (len(_candidates(_network(family, depth, batch))) for depth in (1, 2))
    b = _network(
        family, 1 + max(0, math.ceil((n_configurable - shallow) / (deeper - shallow))), batch
    )
    if len(b.shapes) + 1 > n_nodes:
        raise UsageError(
            f"a program with {n_configurable} configurable nodes has {len(b.shapes) + 1} nodes, "
            f"more than the {n_nodes} requested"
        )
    candidates = _candidates(b)
    _update_weights(b, n_nodes - 1 - len(b.shapes))
    picks = np.linspace(0, len(candidates) - 1, n_configurable).round().astype(np.int64)
    b.node_config_ids = candidates[picks]
    return b


def sized_kernel(n_nodes: int, rng: np.random.Generator) -> Program:
    """Draw a fused elementwise kernel with many tilings."""
    b = Program("f32" if rng.random() < 0.7 else "bf16")
    x = b.parameter((64, *rng.choice([28, 56], 2).tolist(), int(rng.choice(KERNEL_WIDTHS))))
    while len(b.shapes) < n_nodes:
        if n_nodes - len(b.shapes) >= 2 and rng.random() < 0.5:
            x = b.map("multiply", x, b.parameter(b.shapes[x]))
        else:
            x = b.map("tanh", x)
    return b


def _candidates(b: Program) -> NDArray[np.int64]:
    return np.flatnonzero(np.isin(b.opcodes, CONFIGURABLE))


def _network(family: Family, depth: int, batch: int) -> Program:
    b = Program(family.element_type)
    if family.source == "xla":
        x = b.parameter((batch, family.extent, family.extent, 3))
        x = b.convolve(x, family.width, size=7, stride=2)
    else:
        x = b.parameter((batch, family.extent, family.width))
    for _ in range(depth):
        start = x
        for name in family.layer.split():
            x = b.map("add", x, start) if name == "add" else BLOCKS[name](b, x)
    b.dense(x, 2 * family.width)
    return b


def _update_weights(b: Program, n_nodes: int) -> None:
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
