"""Build small HLO-like programs and lay their instructions out as the dataset's node arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_NODE_FEATURES

# The dataset's own opcode numbers, for the instructions that synthetic programs use.
OPCODES = {
    "add": 2,
    "broadcast": 13,
    "concatenate": 22,
    "constant": 24,
    "convolution": 26,
    "copy": 27,
    "divide": 32,
    "dot": 34,
    "exponential": 37,
    "maximum": 57,
    "multiply": 59,
    "parameter": 63,
    "reduce": 70,
    "reshape": 75,
    "rsqrt": 81,
    "slice": 92,
    "subtract": 95,
    "tanh": 96,
    "transpose": 98,
    "tuple": 100,
    "logistic": 107,
}
ELEMENTWISE = frozenset(
    OPCODES[name]
    for name in (
        *("add", "copy", "divide", "exponential", "logistic"),
        *("maximum", "multiply", "rsqrt", "subtract", "tanh"),
    )
)

# Where the official node features lie: one-hot element types, then blocks of columns.
ELEMENT_TYPE_COLUMNS = {"pred": 3, "s32": 6, "f32": 13, "bf16": 15, "tuple": 18}
ELEMENT_BYTES = {"pred": 1, "s32": 4, "f32": 4, "bf16": 2, "tuple": 0}
IS_ROOT = 0
SHAPE = slice(21, 27)
SHAPE_SUM, SHAPE_PRODUCT = 27, 28
TUPLE_SIZE = 29
PARAMETER_NUMBER = 30
DIMENSIONS = 31
WINDOW_SIZE = 37
CONVOLUTION_DIMENSIONS = 93
FEATURE_GROUP_COUNT, BATCH_GROUP_COUNT = 107, 108
SLICE_START, SLICE_STRIDE, SLICE_LIMIT = 109, 113, 117
MINOR_TO_MAJOR = slice(134, 140)
# Blocks of sizes end in a sum and a product; the product of an absent list is stored as 1.
EMPTY_PRODUCTS = (44, 52, 60, 68, 76, 84, 112, 116, 120, 124, 128, 132)


@dataclass(frozen=True)
class Instruction:
    """One node. `details` maps a first column of node_feat to the values that start there."""

    opcode: str
    shape: tuple[int, ...]
    element_type: str
    operands: tuple[int, ...]
    details: Mapping[int, Sequence[float]]


@dataclass(frozen=True)
class Program:
    """A program as the files hold it: n nodes, e edges, s boundaries of computations.

    Attributes:
        node_feat: (n, 140) float32.
        node_opcode: (n,) uint8.
        edge_index: (e, 2) int64; [u, v] means that u consumes v; u > v, sorted, distinct.
        node_splits: (1, s) int64, from 0 to n.
    """

    node_feat: NDArray[np.float32]
    node_opcode: NDArray[np.uint8]
    edge_index: NDArray[np.int64]
    node_splits: NDArray[np.int64]


class GraphArrays(Protocol):
    """Anything that holds a graph's arrays, made here or read from a file."""

    @property
    def node_feat(self) -> NDArray[np.float32]:
        """(n, 140)."""

    @property
    def node_opcode(self) -> NDArray[np.uint8]:
        """(n,)."""

    @property
    def edge_index(self) -> NDArray[np.int64]:
        """(e, 2)."""


@dataclass
class ProgramBuilder:
    """Collects instructions in topological order; a node is named by its position."""

    instructions: list[Instruction] = field(default_factory=list)
    splits: list[int] = field(default_factory=lambda: [0])
    n_parameters: int = 0

    def add(
        self,
        opcode: str,
        shape: Sequence[int],
        operands: Sequence[int] = (),
        *,
        element_type: str | None = None,
        details: Mapping[int, Sequence[float]] | None = None,
    ) -> int:
        """Append an instruction and return its position.

        The element type is that of the first operand unless it is given.
        """
        kind = element_type or self.instructions[operands[0]].element_type
        entry = Instruction(opcode, tuple(shape), kind, tuple(operands), details or {})
        self.instructions.append(entry)
        return len(self.instructions) - 1

    def parameter(self, shape: Sequence[int], element_type: str) -> int:
        """Append the computation's next parameter."""
        number = self.n_parameters
        self.n_parameters += 1
        details = {PARAMETER_NUMBER: (number,)}
        return self.add("parameter", shape, element_type=element_type, details=details)

    def shape(self, node: int) -> tuple[int, ...]:
        """Return the shape of `node`."""
        return self.instructions[node].shape

    def end_computation(self) -> int:
        """Close the current computation; its last instruction is its root. Return the root."""
        self.splits.append(len(self.instructions))
        self.n_parameters = 0
        return len(self.instructions) - 1

    def build(self) -> Program:
        """Lay all instructions out as arrays."""
        feat = np.stack([_feature_row(instruction) for instruction in self.instructions])
        feat[np.array(self.splits[1:]) - 1, IS_ROOT] = 1
        edges = {
            (consumer, operand)
            for consumer, instruction in enumerate(self.instructions)
            for operand in instruction.operands
        }
        return Program(
            node_feat=feat,
            node_opcode=np.array([OPCODES[i.opcode] for i in self.instructions], np.uint8),
            edge_index=np.array(sorted(edges), np.int64).reshape(-1, 2),
            node_splits=np.array([self.splits], np.int64),
        )


def _feature_row(instruction: Instruction) -> NDArray[np.float32]:
    """Return the (140,) features of one instruction, laid out row-major."""
    row = np.zeros(N_NODE_FEATURES, np.float32)
    row[list(EMPTY_PRODUCTS)] = 1
    row[ELEMENT_TYPE_COLUMNS[instruction.element_type]] = 1
    rank = len(instruction.shape)
    row[SHAPE.start : SHAPE.start + rank] = instruction.shape
    row[SHAPE_SUM] = sum(instruction.shape)
    row[SHAPE_PRODUCT] = math.prod(instruction.shape)
    row[MINOR_TO_MAJOR.start : MINOR_TO_MAJOR.start + rank] = np.arange(rank)[::-1]
    for column, values in instruction.details.items():
        row[column : column + len(values)] = values
    return row


def convolution_details(window: Sequence[int], *, stride: int) -> dict[int, Sequence[float]]:
    """Return the feature blocks of a convolution with `window` sizes over NHWC and HWIO.

    Blocks of 8 columns hold 6 sizes, their sum and their product; padding keeps the size.
    """
    n = len(window)
    padding = [size // 2 for size in window]
    blocks = (window, [stride] * n, padding, padding, [1] * n, [1] * n)
    details: dict[int, Sequence[float]] = {
        WINDOW_SIZE + 8 * i: [*block, *[0] * (6 - n), sum(block), math.prod(block)]
        for i, block in enumerate(blocks)
    }
    details[WINDOW_SIZE + 8 * 6 + 7] = (n,)  # no window dimension is reversed
    spatial = [*range(1, n + 1), *[0] * (4 - n)]
    kernel_spatial = [*range(n), *[0] * (4 - n)]
    details[CONVOLUTION_DIMENSIONS] = [
        *(0, n + 1, *spatial),
        *(n, n + 1, *kernel_spatial),
        *(0, n + 1),
    ]
    details[FEATURE_GROUP_COUNT] = (1,)
    details[BATCH_GROUP_COUNT] = (1,)
    return details


def tensor_shapes(node_feat: NDArray[np.float32]) -> list[tuple[int, ...]]:
    """Recover each node's shape from (n, 140) features; scalars and tuples have shape ()."""
    ranks = (node_feat[:, SHAPE] > 0).sum(axis=1)
    sizes = node_feat[:, SHAPE].astype(np.int64)
    return [tuple(row[:rank].tolist()) for row, rank in zip(sizes, ranks, strict=True)]


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (n,) bytes per element of each node; 4 for types not listed, 0 for tuples."""
    result = np.full(len(node_feat), 4, np.int64)
    for name, column in ELEMENT_TYPE_COLUMNS.items():
        result[node_feat[:, column] > 0] = ELEMENT_BYTES[name]
    return result
