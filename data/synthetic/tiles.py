"""Tile configs of elementwise kernels, and the cost model behind their runtimes.

It knows an accelerator that moves whole tiles of 8 x 128 elements along a tensor's two minor
dimensions, and has a scratch memory.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_TILE_VALUES
from data.hlo.graph import HloGraph
from data.synthetic.programs import ELEMENT_SIZES, LANES, ProgramBuilder, Shape

SUBLANES = 8
WIDTHS = (256, 384, 512, 768, 1000, 1024)
OUTPUT_BOUNDS = 8  # where they begin in a tile config; their sum and product follow six sizes
TILE_BYTES_PER_NS = 450.0
ELEMENTS_PER_NS = 600.0  # read, or written
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL, MOST_SPILL = 2.0, 6.0
MOST_BOUND = 64  # besides a dimension's own number of units
DRAWN = 16  # times as many configs as are wanted: most overflow the scratch


class TileProblem(NamedTuple):
    """What a kernel's cost depends on."""

    shape: Shape  # of its tensors
    element_bytes: int  # per element
    n_streams: int  # tensors that are read or written once per tile


def sized_kernel(n_nodes: int, rng: np.random.Generator) -> tuple[HloGraph, TileProblem]:
    """Draw one fused elementwise kernel of so many nodes, 2 at least, of many tilings."""
    element_type = "f32" if rng.random() < 0.7 else "bf16"
    b = ProgramBuilder(element_type)
    x = b.parameter((64, *rng.choice([28, 56], 2).tolist(), int(rng.choice(WIDTHS))))
    while len(b.shapes) < n_nodes:
        if n_nodes - len(b.shapes) >= 2 and rng.random() < 0.5:
            x = b.map("multiply", x, b.parameter(b.shapes[x]))
        else:
            x = b.map("tanh", x)
    n_streams = b.opcodes.count("parameter") + 1
    return b.finish(), TileProblem(b.shapes[x], ELEMENT_SIZES[element_type], n_streams)


def tile_units(shape: Shape) -> NDArray[np.int64]:
    """Return how many elements one unit of a bound covers, per dimension of `shape`."""
    units = np.ones(len(shape), np.int64)
    units[-1:] = LANES
    units[-2:-1] = SUBLANES
    return units


def tile_runtime_ns(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of tile configs (c, 24).

    A kernel walks a grid of tiles:

        runtime = launch + steps * (overhead + max(arithmetic, spill * traffic of the working set))

    Ragged and unfilled tiles cost as much as full ones. A working set above the scratch limit
    spills: traffic grows with the excess.
    """
    tile = _tile(problem.shape, config_feat)
    steps = (-(-np.array(problem.shape) // tile)).prod(axis=1)
    held = _working_set_bytes(problem, config_feat)
    spill = 1 + np.clip(SPILL * (held / SCRATCH_BYTES - 1), 0, MOST_SPILL)
    work_ns = tile.prod(axis=1) * problem.n_streams / ELEMENTS_PER_NS
    busy_ns = np.maximum(work_ns, held * spill / TILE_BYTES_PER_NS)
    return np.asarray(LAUNCH_NS + steps * (STEP_OVERHEAD_NS + busy_ns))


def _tile(shape: Shape, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c, rank) elements of one tile along each dimension, padded to whole units."""
    bounds = config_feat[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)]
    return bounds.astype(np.int64) * tile_units(shape)


def _working_set_bytes(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    elements: NDArray[np.int64] = _tile(problem.shape, config_feat).prod(axis=1)
    return elements * problem.n_streams * problem.element_bytes


def tile_configs(
    problem: TileProblem, n_configs: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24); the compiler's default is row 0.

    The default has the largest working set that fits half of the scratch memory; nothing that
    overflows the scratch more than twice is kept. Kernels with few tilings give fewer configs.
    """
    rows = _draw_tiles(problem.shape, DRAWN * n_configs, rng)
    needed = _working_set_bytes(problem, rows)
    rows, needed = rows[needed <= 2 * SCRATCH_BYTES], needed[needed <= 2 * SCRATCH_BYTES]
    default = int(np.argmax(np.where(needed <= SCRATCH_BYTES // 2, needed, -1)))
    others = rng.permutation(np.delete(np.arange(len(rows)), default))[: n_configs - 1]
    return rows[[default, *others.tolist()]]


def _draw_tiles(shape: Shape, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n` distinct tile configs, the one of single units among them."""
    units = [math.ceil(n / unit) for n, unit in zip(shape, tile_units(shape).tolist(), strict=True)]
    bounds = [np.array([*range(1, min(most, MOST_BOUND + 1)), most]) for most in units]
    lengths = [len(choices) for choices in bounds]
    n_all = math.prod(lengths)
    drawn = np.arange(n_all) if n_all <= n else np.unique(rng.integers(0, n_all, n))
    drawn[0] = 0
    places = np.unravel_index(drawn, lengths)
    chosen = np.stack([own[place] for own, place in zip(bounds, places, strict=True)], axis=1)
    rows = np.zeros((len(drawn), N_TILE_VALUES), np.float32)
    rows[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)] = chosen
    rows[:, OUTPUT_BOUNDS + 6] = chosen.sum(axis=1)
    rows[:, OUTPUT_BOUNDS + 7] = chosen.prod(axis=1)
    return rows
