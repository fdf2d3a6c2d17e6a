"""Tile configs of kernels, and the cost model behind their runtimes.

It knows an accelerator that moves whole tiles of 8 x 128 elements along a tensor's two minor
dimensions, and has a scratch memory.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_TILE_VALUES
from data.graphs.node_columns import OPCODES
from data.synthetic.programs import (
    LANES,
    GraphArrays,
    Shape,
    element_bytes,
    operands_of,
    tensor_shapes,
)

SUBLANES = 8
KERNEL_BOUNDS, OUTPUT_BOUNDS = slice(0, 8), slice(8, 16)  # of a tile config
TILE_BYTES_PER_NS = 450.0
FLOPS_PER_NS = 40_000.0
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL, MOST_SPILL = 2.0, 6.0
MOST_BOUND = 64  # besides a dimension's own number of units
DRAWN = 16  # times as many configs as are wanted: most overflow the scratch


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


def tile_runtime_ns(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of tile configs (c, 24).

    A kernel walks a grid of output tiles, and for a product of contraction tiles in each:

        steps   = output tiles * contraction tiles
        runtime = launch + steps * overhead + max(arithmetic, spill * traffic of the working set)

    Ragged and unfilled tiles cost as much as full ones. A working set above the scratch limit
    spills: traffic grows with the excess.
    """
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


def tile_configs(
    problem: TileProblem, n_configs: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24); the compiler's default is row 0.

    The default has the largest working set that fits half of the scratch memory; nothing that
    overflows the scratch more than twice is kept. Kernels with few tilings give fewer configs.
    """
    rows = _draw_tiles(problem, DRAWN * n_configs, rng)
    needed = working_set_bytes(problem, rows)
    rows, needed = rows[needed <= 2 * SCRATCH_BYTES], needed[needed <= 2 * SCRATCH_BYTES]
    default = int(np.argmax(np.where(needed <= SCRATCH_BYTES // 2, needed, -1)))
    others = rng.permutation(np.delete(np.arange(len(rows)), default))[: n_configs - 1]
    return rows[[default, *others.tolist()]]


def _draw_tiles(problem: TileProblem, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n` distinct tile configs, the one of single units among them."""
    units = [
        math.ceil(size / unit)
        for shape in (problem.shape, problem.kernel)
        for size, unit in zip(shape, tile_units(shape).tolist(), strict=True)
    ]
    if problem.kernel:
        units.pop()  # the weight's features are the output's
    bounds = [np.array([*range(1, min(most, MOST_BOUND + 1)), most]) for most in units]
    lengths = [len(choices) for choices in bounds]
    n_all = math.prod(lengths)
    drawn = np.arange(n_all) if n_all <= n else np.unique(rng.integers(0, n_all, n))
    drawn[0] = 0
    places = np.unravel_index(drawn, lengths)
    columns = [choices[place] for choices, place in zip(bounds, places, strict=True)]
    if problem.kernel:
        columns.append(columns[len(problem.shape) - 1])
    rows = np.zeros((len(drawn), N_TILE_VALUES), np.float32)
    rank = len(problem.shape)
    for block, part in ((OUTPUT_BOUNDS, columns[:rank]), (KERNEL_BOUNDS, columns[rank:])):
        if part:
            chosen = np.stack(part, axis=1)
            rows[:, block.start : block.start + len(part)] = chosen
            rows[:, block.start + 6] = chosen.sum(axis=1)
            rows[:, block.start + 7] = chosen.prod(axis=1)
    return rows
