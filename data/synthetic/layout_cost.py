"""The cost model behind synthetic layout runtimes: a known function of a file's own content.

A layout is reduced to its two most minor dimensions, which is what the 8 x 128 tile of the
accelerator sees, and coded as 6 * minor + second. Each node's tensor takes its layout from a
*slot*: the output, input or kernel of a configurable node (3 k slots), or one of 37 fixed codes.

    runtime = sum of compute, and an overhead per node                (no config changes it)
            + sum over tensors of padded bytes / bandwidth            (elementwise ones are fused)
            + sum over convolutions and dots of a penalty per tensor
              whose layout is not the one that the operation prefers
            + sum over reshapes of a copy per side that is not row-major
            + sum over edges of a copy where the consumer needs another layout than the producer's

Elementwise nodes take the layout of their first operand of the same shape, so that a choice
travels down chains; other nodes read any layout and write their own default. An unset (-1) output
is the node's own default, an unset operand is taken as the producer left it (in its
own default if the producer is free of layout). The operands of a
convolution or dot are its sources in order of position: input, then kernel. Scalars, vectors,
constants, broadcasts and tuples have no layout to disagree about.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.synthetic.hlo import (
    ELEMENTWISE,
    MINOR_TO_MAJOR,
    OPCODES,
    GraphArrays,
    element_bytes,
    tensor_shapes,
)

BYTES_PER_NS = 1_200.0
FLOPS_PER_NS = 60_000.0
COPY_BYTES_PER_NS = 150.0  # copies gather across tiles, far below the memory's bandwidth
COPY_OVERHEAD_NS = 1_000.0
NODE_OVERHEAD_NS = 300.0
MINOR_PENALTY = 0.25
SECOND_PENALTY = 0.10
LANES, SUBLANES = 128, 8

FREE = 36
N_CODES = 37
_LAYOUT_FREE = {OPCODES[name] for name in ("broadcast", "constant", "tuple")}
_MOVES_NOTHING = ELEMENTWISE | {OPCODES["parameter"]}
_TUPLE, _RESHAPE = OPCODES["tuple"], OPCODES["reshape"]
_CONVOLUTION = OPCODES["convolution"]

Shape = tuple[int, ...]


class ProgramArrays(GraphArrays, Protocol):
    """Anything that holds a layout graph's arrays: a synthetic program or a graph that was read."""

    @property
    def node_config_ids(self) -> NDArray[np.int64]:
        """(k,)."""


@dataclass(frozen=True)
class LayoutCost:
    """The cost model of one program, as tables over slots (S = 3 k + 37) and layout codes.

    Attributes:
        base_ns: what no config changes.
        inherited: (k, 3) slot whose code an unset tensor takes: output, input, kernel.
        slot_ns: (S, 37) cost of a slot having a code.
        pairs: (p, 2) slots that a copy is needed between where their codes differ.
        pair_ns: (p,) cost of those copies.
    """

    base_ns: float
    inherited: NDArray[np.int64]
    slot_ns: NDArray[np.float64]
    pairs: NDArray[np.int64]
    pair_ns: NDArray[np.float64]

    def runtime_ns(self, configs: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return the (c,) noise-free runtimes of configs (c, k, 18)."""
        codes = self._resolve(configs)
        total = np.full(len(configs), self.base_ns)
        total += self.slot_ns[np.arange(codes.shape[1]), codes].sum(axis=1)
        left, right = codes[:, self.pairs[:, 0]], codes[:, self.pairs[:, 1]]
        needs_copy = (left != right) & (left != FREE) & (right != FREE)
        return total + needs_copy @ self.pair_ns

    def _resolve(self, configs: NDArray[np.int8]) -> NDArray[np.int64]:
        """Return the (c, S) layout code of each slot; unset tensors inherit, in program order."""
        c, k, _ = configs.shape
        values = configs.reshape(c, 3 * k, 6)[:, :, :2].astype(np.int64)
        has_pair = values[:, :, 1] >= 0
        explicit = np.where(has_pair, 6 * values[:, :, 0] + values[:, :, 1], -1)
        fixed = np.broadcast_to(np.arange(N_CODES), (c, N_CODES))
        codes = np.concatenate([explicit, fixed], axis=1)
        for slot, source in enumerate(self.inherited.ravel()):
            unset = codes[:, slot] < 0
            codes[unset, slot] = codes[unset, source]
        return codes


def layout_runtime_ns(
    program: ProgramArrays, configs: NDArray[np.int8], *, chunk: int = 512
) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of `configs` (c, k, 18), in chunks to bound memory."""
    cost = layout_cost(program)
    starts = range(0, len(configs), chunk)
    parts = [cost.runtime_ns(configs[start : start + chunk]) for start in starts]
    return np.concatenate(parts) if parts else np.zeros(0)


def padded_elements(shape: Shape, code: int) -> int:
    """Return the elements that a tensor takes up when its two minor dimensions fill whole tiles."""
    minor, second = shape[code // 6], shape[code % 6]
    rest = math.prod(shape) // (minor * second)
    return rest * (-(-minor // LANES) * LANES) * (-(-second // SUBLANES) * SUBLANES)


def legal_codes(shape: Shape) -> list[int]:
    """Return the codes of a tensor: ordered pairs of its dimensions; none below rank 2."""
    axes = range(len(shape))
    return [6 * minor + second for minor in axes for second in axes if minor != second]


def preferred_codes(opcode: int, output: Shape, kernel: Shape) -> tuple[int, int, int]:
    """Return the layouts that a convolution or dot runs best with: output, input, kernel.

    A convolution wants features minor, then batch if it fills sublanes, else the last spatial
    axis; its kernel wants the wider of its two feature axes minor. A dot wants that one of its
    output's last two axes minor which wastes fewer lanes, and a kernel that is contracted along
    lanes where that fills them.
    """
    last, before = len(output) - 1, len(output) - 2
    if opcode == _CONVOLUTION:
        second = 0 if output[0] % SUBLANES == 0 else before
        swap = kernel[-1] < kernel[-2]
        kernel_code = 6 * before + last if swap else 6 * last + before
        return 6 * last + second, 6 * last + second, kernel_code
    straight, swapped = 6 * last + before, 6 * before + last
    if padded_elements(output, swapped) < padded_elements(output, straight):
        output_code = swapped
    else:
        output_code = straight
    n = len(kernel)
    if kernel[-2] % LANES == 0 and kernel[-1] % LANES != 0:
        return output_code, straight, 6 * (n - 2) + n - 1
    return output_code, straight, 6 * (n - 1) + n - 2


def compute_ns(opcode: int, output: Shape, operand: Shape, kernel: Shape) -> float:
    """Return the arithmetic time of a convolution or dot from its tensors' sizes."""
    if opcode == _CONVOLUTION:
        return 2 * math.prod(output) * math.prod(kernel) / kernel[-1] / FLOPS_PER_NS
    sizes = math.prod(output) * math.prod(operand) * math.prod(kernel)
    shared = math.prod(output[:-2]) if len(kernel) > 2 else 1
    return 2 * math.sqrt(sizes / shared) / FLOPS_PER_NS


def layout_cost(program: ProgramArrays) -> LayoutCost:
    """Build the tables of a program's cost model from the content of its file."""
    return _TableBuilder(program).build()


class _TableBuilder:
    """Walks the program once, in order, and sums equal terms into tables."""

    def __init__(self, program: ProgramArrays) -> None:
        self.opcodes = program.node_opcode.tolist()
        self.shapes = tensor_shapes(program.node_feat)
        self.bytes = element_bytes(program.node_feat).tolist()
        self.minor = program.node_feat[:, MINOR_TO_MAJOR].astype(np.int64)
        self.config_of = {int(v): j for j, v in enumerate(program.node_config_ids)}
        self.k = len(self.config_of)
        self.operands: list[list[int]] = [[] for _ in self.opcodes]
        for consumer, producer in program.edge_index.tolist():
            self.operands[consumer].append(producer)
        self.source = [self._fixed(FREE)] * len(self.opcodes)
        self.base_ns = NODE_OVERHEAD_NS * len(self.opcodes)
        self.inherited = np.full((self.k, 3), self._fixed(FREE), np.int64)
        self.slot_ns = np.zeros((3 * self.k + N_CODES, N_CODES))
        self.copies: dict[tuple[int, int], float] = defaultdict(float)

    def build(self) -> LayoutCost:
        for node in range(len(self.opcodes)):
            self.source[node] = self._source(node)
            if node in self.config_of:
                self._add_configurable(node, self.config_of[node])
            elif self.opcodes[node] in ELEMENTWISE or self.opcodes[node] == _TUPLE:
                self._add_reads(node)
            if self.opcodes[node] not in _MOVES_NOTHING:
                self._add_traffic(node, self.source[node])
        pairs = sorted(pair for pair, cost in self.copies.items() if cost)
        return LayoutCost(
            base_ns=self.base_ns,
            inherited=self.inherited,
            slot_ns=self.slot_ns,
            pairs=np.array(pairs, np.int64).reshape(-1, 2),
            pair_ns=np.array([self.copies[pair] for pair in pairs], np.float64),
        )

    def _add_reads(self, node: int) -> None:
        """Charge copies to an elementwise node, or to a tuple, which wants default layouts."""
        for operand in self.operands[node]:
            if self.opcodes[node] == _TUPLE:
                self._add_copy(operand, self._fixed(self._default_code(operand)))
            elif self.shapes[operand] == self.shapes[node]:
                self._add_copy(operand, self.source[node])

    def _fixed(self, code: int) -> int:
        return 3 * self.k + code

    def _default_code(self, node: int) -> int:
        """Return the code of the node's own layout; FREE below rank 2."""
        if len(self.shapes[node]) < 2:
            return FREE
        return int(6 * self.minor[node, 0] + self.minor[node, 1])

    def _source(self, node: int) -> int:
        """Return the slot that the node's output takes its layout from."""
        if len(self.shapes[node]) < 2 or self.opcodes[node] in _LAYOUT_FREE:
            return self._fixed(FREE)
        if node in self.config_of:
            return 3 * self.config_of[node]
        if self.opcodes[node] in ELEMENTWISE:
            for operand in self.operands[node]:
                same_shape = self.shapes[operand] == self.shapes[node]
                if same_shape and self.source[operand] != self._fixed(FREE):
                    return self.source[operand]
        return self._fixed(self._default_code(node))

    def _tensor_bytes(self, node: int) -> int:
        return math.prod(self.shapes[node]) * self.bytes[node]

    def _copy_ns(self, node: int) -> float:
        """Return the time to read and write the node's output once."""
        return COPY_OVERHEAD_NS + 2 * self._tensor_bytes(node) / COPY_BYTES_PER_NS

    def _add_copy(self, producer: int, required: int) -> None:
        """Charge a copy of the producer's output where it is not as the slot `required`."""
        source = self.source[producer]
        if source != required and self._fixed(FREE) not in (source, required):
            pair = (min(source, required), max(source, required))
            self.copies[pair] += self._copy_ns(producer)

    def _add_traffic(self, node: int, slot: int) -> None:
        """Charge moving the node's output, padded as the slot's layout demands."""
        for code in legal_codes(self.shapes[node]):
            moved = padded_elements(self.shapes[node], code) * self.bytes[node]
            self.slot_ns[slot, code] += moved / BYTES_PER_NS

    def _add_configurable(self, node: int, j: int) -> None:
        """Charge a configurable node's operands, preferences and arithmetic."""
        self.inherited[j, 0] = self._fixed(self._default_code(node))
        operands = [v for v in self.operands[node] if self.shapes[v]][:2]
        for position, operand in enumerate(operands, start=1):
            source = self.source[operand]
            own = self._fixed(self._default_code(operand))
            self.inherited[j, position] = own if source == self._fixed(FREE) else source
            self._add_copy(operand, 3 * j + position)
            self._add_traffic(operand, 3 * j + position)
        if self.opcodes[node] == _RESHAPE:
            for slot, tensor in zip((3 * j, 3 * j + 1), (node, *operands), strict=False):
                for code in legal_codes(self.shapes[tensor]):
                    if code != self._default_code(tensor):
                        self.slot_ns[slot, code] += self._copy_ns(tensor)
        elif len(operands) == 2:
            self._add_preferences(node, j, operands)

    def _add_preferences(self, node: int, j: int, operands: list[int]) -> None:
        """Charge each tensor of a convolution or dot by how far it is from the preferred layout."""
        shapes = [self.shapes[v] for v in (node, *operands)]
        busy_ns = compute_ns(self.opcodes[node], *shapes)
        self.base_ns += busy_ns
        wanted = preferred_codes(self.opcodes[node], shapes[0], shapes[2])
        for position, (shape, best) in enumerate(zip(shapes, wanted, strict=True)):
            for code in legal_codes(shape):
                penalty = MINOR_PENALTY * (code // 6 != best // 6)
                penalty += SECOND_PENALTY * (code % 6 != best % 6)
                self.slot_ns[3 * j + position, code] += penalty * busy_ns
