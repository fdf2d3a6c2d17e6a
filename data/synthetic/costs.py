"""The cost models behind synthetic runtimes: known functions of a file's own content.

Both know an accelerator that moves whole tiles of 8 x 128 elements along a tensor's two minor
dimensions.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph, TileGraph
from data.graphs.node_columns import ELEMENT_BYTES, ELEMENT_TYPE, OPCODES
from data.graphs.node_layouts import dimension_sizes
from data.hlo import HloGraph
from data.synthetic.programs import LayoutProgram, Shape

LANES, SUBLANES = 128, 8
LAYOUT_BYTES_PER_NS = 400.0
COPY_BYTES_PER_NS = 150.0  # copies gather across tiles, far below the memory's bandwidth
COPY_OVERHEAD_NS = 1_000.0
NODE_OVERHEAD_NS = 300.0

KERNEL_BOUNDS, OUTPUT_BOUNDS = slice(0, 8), slice(8, 16)  # of a tile config
TILE_BYTES_PER_NS = 450.0
FLOPS_PER_NS = 40_000.0
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL, MOST_SPILL = 2.0, 6.0

GraphArrays = HloGraph | LayoutGraph | TileGraph  # made here, or read from a file
LayoutArrays = LayoutProgram | LayoutGraph


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


@dataclass(frozen=True)
class LayoutCost:
    """The cost model of a program: what the most minor dimension of each tensor costs.

        runtime = overhead per node, and moving each tensor that no config lays out
                + sum over the tensors of configurable nodes of their bytes / bandwidth, the minor
                  dimension filled up to 128 lanes
                + sum over their operands of a copy where one is wanted otherwise than it comes

    An unset output has its last dimension minor; an unset operand is taken as it comes. It comes
    as its producer's output, which elementwise nodes and the like hand on from their first operand
    of the same shape.

    Attributes:
        base_ns: what no config changes.
        moved_ns: (k, 3, 6) of output, input and kernel, by minor dimension.
        default: (k, 3) int64 the minor dimension that a tensor has where no config reaches it.
        source: (k, 2) int64 which configurable node an operand comes from; -1 = none.
        copy_ns: (k, 2) of a copy of each operand.
    """

    base_ns: float
    moved_ns: NDArray[np.float64]
    default: NDArray[np.int64]
    source: NDArray[np.int64]
    copy_ns: NDArray[np.float64]

    def runtime_ns(self, configs: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return the (c,) noise-free runtimes of configs (c, k, 18)."""
        c, k, _ = configs.shape
        given = configs.reshape(c, k, 3, 6)[..., 0].astype(np.int64)
        output = np.where(given[..., 0] < 0, self.default[:, 0], given[..., 0])
        comes = np.where(self.source >= 0, output[:, self.source], self.default[:, 1:])
        wanted = np.where(given[..., 1:] < 0, comes, given[..., 1:])
        minor = np.concatenate([output[..., None], wanted], axis=2)
        moved_ns = self.moved_ns[np.arange(k)[:, None], np.arange(3), minor]
        copies_ns = np.where(wanted != comes, self.copy_ns, 0)
        total: NDArray[np.float64] = self.base_ns + moved_ns.sum((1, 2)) + copies_ns.sum((1, 2))
        return total


def layout_cost(graph: LayoutArrays) -> LayoutCost:
    """Build a program's cost model from the content of its file."""
    shapes, operands = tensor_shapes(graph.node_feat), operands_of(graph)
    n_bytes = [
        math.prod(shape) * width
        for shape, width in zip(shapes, element_bytes(graph.node_feat).tolist(), strict=True)
    ]
    row_of = {node: row for row, node in enumerate(graph.node_config_ids.tolist())}
    source = [-1] * len(shapes)  # the configurable node whose output each node's comes from
    for node, shape in enumerate(shapes):
        handed_on = [source[u] for u in operands[node] if shape and shapes[u] == shape]
        source[node] = row_of.get(node, handed_on[0] if handed_on else -1)
    k = len(row_of)
    moved_ns, copy_ns = np.zeros((k, 3, 6)), np.zeros((k, 2))
    default, comes_from = np.zeros((k, 3), np.int64), np.full((k, 2), -1, np.int64)
    for node, row in row_of.items():
        tensors = [node, *[u for u in operands[node] if shapes[u]]][:3]
        for place, tensor in enumerate(tensors):
            default[row, place] = max(0, len(shapes[tensor]) - 1)
            for minor, size in enumerate(shapes[tensor]):
                waste = -(-size // LANES) * LANES / size
                moved_ns[row, place, minor] = n_bytes[tensor] * waste / LAYOUT_BYTES_PER_NS
            if place:
                comes_from[row, place - 1] = source[tensor]
                copied_ns = 2 * n_bytes[tensor] / COPY_BYTES_PER_NS
                copy_ns[row, place - 1] = COPY_OVERHEAD_NS + copied_ns
    fixed = [size for node, size in enumerate(n_bytes) if node not in row_of]
    base_ns = NODE_OVERHEAD_NS * len(shapes) + sum(fixed) / LAYOUT_BYTES_PER_NS
    return LayoutCost(base_ns, moved_ns, default, comes_from, copy_ns)


class TileProblem(NamedTuple):
    """What a kernel's cost depends on."""

    shape: Shape  # of the tensor whose tiles are walked: a product's output, else the largest one
    kernel: Shape  # of the weight that is contracted; empty where nothing is
    element_bytes: int  # per element
    n_streams: int  # tensors of the walked shape that are read or written once per output tile


def tile_problem(graph: GraphArrays) -> TileProblem:
    """Read from a kernel's arrays what its cost depends on."""
    shapes = tensor_shapes(graph.node_feat)
    products = np.isin(graph.node_opcode, [OPCODES[o] for o in ("dot", "convolution")])
    sizes = [math.prod(shape) for shape in shapes]
    main = int(np.argmax(products) if products.any() else np.argmax(sizes))
    weight = shapes[max(operands_of(graph)[main])] if products.any() else ()
    is_stream = graph.node_opcode == OPCODES["parameter"]
    is_stream[-1] = True  # the root
    n_streams = sum(bool(is_stream[v]) for v, shape in enumerate(shapes) if shape == shapes[main])
    width = int(element_bytes(graph.node_feat)[main])
    return TileProblem(shapes[main], weight, width, max(1, n_streams))


def tile_units(shape: Shape) -> NDArray[np.int64]:
    """Return how many elements one unit of a bound covers, per dimension of `shape`."""
    units = np.ones(len(shape), np.int64)
    units[-1:] = LANES
    units[-2:-1] = SUBLANES
    return units


def working_set_bytes(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c,) bytes of scratch that each config (c, 24) needs; a product's weights too."""
    elements = _tile(problem.shape, config_feat[:, OUTPUT_BOUNDS]).prod(axis=1) * problem.n_streams
    if problem.kernel:
        elements += _tile(problem.kernel, config_feat[:, KERNEL_BOUNDS]).prod(axis=1)
    return elements * problem.element_bytes


def tile_runtime_ns(
    kernel: GraphArrays | TileProblem, config_feat: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of tile configs (c, 24).

    A kernel walks a grid of output tiles, and for a product of contraction tiles in each:

        steps   = output tiles * contraction tiles
        runtime = launch + steps * overhead + max(arithmetic, spill * traffic of the working set)

    Ragged and unfilled tiles cost as much as full ones. A working set above the scratch limit
    spills: traffic grows with the excess.
    """
    problem = kernel if isinstance(kernel, TileProblem) else tile_problem(kernel)
    tile = _tile(problem.shape, config_feat[:, OUTPUT_BOUNDS])
    steps = _grid(problem.shape, tile)
    work = tile.prod(axis=1) * problem.n_streams * 64
    if problem.kernel:
        inner = _tile(problem.kernel, config_feat[:, KERNEL_BOUNDS])[:, :-1]
        steps = steps * _grid(problem.kernel[:-1], inner)
        work = 2 * tile.prod(axis=1) * inner.prod(axis=1)
    held = working_set_bytes(problem, config_feat)
    spill = 1 + np.clip(SPILL * (held / SCRATCH_BYTES - 1), 0, MOST_SPILL)
    busy_ns = np.maximum(work / FLOPS_PER_NS, held * spill / TILE_BYTES_PER_NS)
    return np.asarray(LAUNCH_NS + steps * (STEP_OVERHEAD_NS + busy_ns))


def _tile(shape: Shape, bounds: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c, rank) elements of one tile along each dimension, padded to whole units."""
    return bounds[:, : len(shape)].astype(np.int64) * tile_units(shape)


def _grid(shape: Shape, tile: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (c,) number of tiles that cover a shape; the last ones may be ragged."""
    counts: NDArray[np.int64] = -(-np.array(shape, np.int64) // tile)
    return counts.prod(axis=1)
