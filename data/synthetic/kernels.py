"""Fused tile kernels and their tile configs."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_TILE_VALUES
from data.synthetic import blocks
from data.synthetic.hlo import Program, ProgramBuilder
from data.synthetic.tile_cost import (
    KERNEL_BOUNDS,
    OUTPUT_BOUNDS,
    SCRATCH_BYTES,
    TileProblem,
    tile_problem,
    tile_units,
    working_set_bytes,
)

BATCHES = (4, 8, 16, 32, 64)
WIDTHS = (48, 64, 100, 128, 192, 256, 384, 512, 768, 1000, 1024)
SIDES = (5, 7, 12, 14, 26, 28, 56)
# Bounds that the search tries; a dimension's own number of units is always tried too.
BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def random_kernel(rng: np.random.Generator) -> Program:
    """Draw one fused kernel of 2 to about 40 nodes."""
    kinds = list(_KINDS)
    return _KINDS[kinds[rng.integers(len(kinds))]](rng)


def _pick(rng: np.random.Generator, values: tuple[int, ...]) -> int:
    return int(values[rng.integers(len(values))])


def _random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    """Draw a matrix, a sequence or an image batch."""
    rank = int(rng.integers(2, 5))
    sides = [_pick(rng, SIDES) for _ in range(rank - 2)]
    return (_pick(rng, BATCHES) * (8 if rank == 2 else 1), *sides, _pick(rng, WIDTHS))


def _elementwise_tail(b: ProgramBuilder, x: int, rng: np.random.Generator) -> int:
    """Fuse up to 12 further elementwise steps onto `x`."""
    kind = b.instructions[x].element_type
    for _ in range(int(rng.integers(0, 13))):
        step = int(rng.integers(4))
        if step == 0:
            x = blocks.binary(b, "add", x, b.parameter(b.shape(x), kind))
        elif step == 1:
            x = blocks.binary(b, "multiply", x, blocks.scalar_like(b, x))
        elif step == 2:
            x = blocks.relu(b, x)
        else:
            x = blocks.unary(b, "tanh", x)
    return x


def _element_type(rng: np.random.Generator) -> str:
    return "f32" if rng.random() < 0.7 else "bf16"


def _elementwise_kernel(rng: np.random.Generator) -> Program:
    b = ProgramBuilder()
    shape, kind = _random_shape(rng), _element_type(rng)
    x = blocks.binary(b, "add", b.parameter(shape, kind), b.parameter(shape, kind))
    _elementwise_tail(b, x, rng)
    b.end_computation()
    return b.build()


def _copy_kernel(rng: np.random.Generator) -> Program:
    b = ProgramBuilder()
    blocks.unary(b, "copy", b.parameter(_random_shape(rng), _element_type(rng)))
    b.end_computation()
    return b.build()


def _reduce_kernel(rng: np.random.Generator) -> Program:
    b, adder, _ = blocks.begin_program(_element_type(rng))
    shape = _random_shape(rng)
    kind = b.instructions[adder].element_type
    x = _elementwise_tail(b, b.parameter(shape, kind), rng)
    blocks.reduce(b, x, list(range(len(shape) - 1)), adder)
    b.end_computation()
    return b.build()


def _dot_kernel(rng: np.random.Generator) -> Program:
    b = ProgramBuilder()
    shape = (_pick(rng, BATCHES) * 16, _pick(rng, WIDTHS))
    x = blocks.dense(b, b.parameter(shape, _element_type(rng)), _pick(rng, WIDTHS), [])
    _elementwise_tail(b, x, rng)
    b.end_computation()
    return b.build()


def _convolution_kernel(rng: np.random.Generator) -> Program:
    b = ProgramBuilder()
    side = _pick(rng, SIDES)
    shape = (_pick(rng, BATCHES), side, side, _pick(rng, WIDTHS))
    x = b.parameter(shape, _element_type(rng))
    size = _pick(rng, (1, 3, 5))
    x = blocks.convolution(b, x, _pick(rng, WIDTHS), size=size, stride=1, weights=[])
    _elementwise_tail(b, x, rng)
    b.end_computation()
    return b.build()


_KINDS: dict[str, Callable[[np.random.Generator], Program]] = {
    "convolution": _convolution_kernel,
    "dot": _dot_kernel,
    "elementwise": _elementwise_kernel,
    "reduce": _reduce_kernel,
    "copy": _copy_kernel,
}


def tile_configs(kernel: Program, n_configs: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24); the compiler's default is row 0.

    The default has the largest working set that fits half of the scratch memory; nothing that
    overflows the scratch more than twice is kept. Kernels with few tilings give fewer configs.
    """
    problem = tile_problem(kernel)
    drawn = np.concatenate([_draw(problem, 8 * n_configs, rng), _smallest(problem)])
    drawn = np.unique(drawn, axis=0)
    needed = working_set_bytes(problem, drawn)
    drawn, needed = drawn[needed <= 2 * SCRATCH_BYTES], needed[needed <= 2 * SCRATCH_BYTES]
    fits = np.where(needed <= SCRATCH_BYTES // 2, needed, -1)
    default = int(np.argmax(fits))
    others = rng.permutation(np.delete(np.arange(len(drawn)), default))[: n_configs - 1]
    return drawn[[default, *others.tolist()]]


def _draw(problem: TileProblem, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw tile configs (n, 24) with repetition."""
    rows = np.zeros((n, N_TILE_VALUES), np.float32)
    bounds = _draw_bounds(problem.shape, n, rng)
    _put(rows, OUTPUT_BOUNDS, bounds)
    if problem.kernel:
        weight_bounds = _draw_bounds(problem.kernel, n, rng)
        weight_bounds[:, -1] = bounds[:, -1]  # the weight's features are the output's
        _put(rows, KERNEL_BOUNDS, weight_bounds)
    return rows


def _smallest(problem: TileProblem) -> NDArray[np.float32]:
    """Return the (1, 24) config whose bounds are all 1, which any scratch memory holds."""
    row = np.zeros((1, N_TILE_VALUES), np.float32)
    _put(row, OUTPUT_BOUNDS, np.ones((1, len(problem.shape)), np.int64))
    if problem.kernel:
        _put(row, KERNEL_BOUNDS, np.ones((1, len(problem.kernel)), np.int64))
    return row


def _draw_bounds(shape: tuple[int, ...], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw bounds (n, rank) of a tensor, at most its own number of units."""
    columns = []
    for size, unit in zip(shape, tile_units(shape).tolist(), strict=True):
        most = math.ceil(size / unit)
        choices = np.array(sorted({most, *[bound for bound in BOUNDS if bound <= most]}))
        columns.append(choices[rng.integers(0, len(choices), n)])
    return np.stack(columns, axis=1)


def _put(rows: NDArray[np.float32], block: slice, bounds: NDArray[np.int64]) -> None:
    """Store bounds (c, rank) with their sum and product in a block of 8 columns."""
    rows[:, block.start : block.start + bounds.shape[1]] = bounds
    rows[:, block.start + 6] = bounds.sum(axis=1)
    rows[:, block.start + 7] = bounds.prod(axis=1)
