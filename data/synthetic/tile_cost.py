"""The cost model behind synthetic tile runtimes: a known function of a file's own content.

Output and kernel bounds count whole 8 x 128 tiles along a tensor's two minor dimensions and
elements along the others, as in the real files. The kernel walks a grid of tiles:

    steps   = output tiles, times contraction tiles for a convolution or dot
    runtime = launch + steps * overhead + max(arithmetic, memory traffic)

Ragged and unfilled tiles cost as much as full ones (padding waste). Input tiles are loaded again
for each output feature tile, unless the whole contraction fits one step and they stay in scratch
memory (re-use). A working set above the scratch limit spills: traffic grows with the excess.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.synthetic.hlo import IS_ROOT, OPCODES, GraphArrays, element_bytes, tensor_shapes

KERNEL_BOUNDS, OUTPUT_BOUNDS = slice(0, 8), slice(8, 16)
BYTES_PER_NS = 450.0
FLOPS_PER_NS = 40_000.0
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL = 2.0
MAX_SPILL = 6.0
LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class TileProblem:
    """What a kernel's cost depends on.

    Attributes:
        shape: tensor whose tiles are walked: a product's output, else the largest tensor.
        kernel: shape of the weight that is contracted; empty where nothing is.
        element_bytes: bytes per element.
        n_streams: tensors of the walked shape that are read or written once per output tile.
    """

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    element_bytes: int
    n_streams: int


def tile_problem(kernel: GraphArrays) -> TileProblem:
    """Read from a kernel's arrays what its cost depends on."""
    shapes = tensor_shapes(kernel.node_feat)
    sizes = [math.prod(shape) for shape in shapes]
    products = np.isin(kernel.node_opcode, [OPCODES["dot"], OPCODES["convolution"]])
    main = int(np.argmax(products) if products.any() else np.argmax(sizes))
    weight: tuple[int, ...] = ()
    if products.any():
        operands = kernel.edge_index[kernel.edge_index[:, 0] == main, 1]
        weight = shapes[int(operands.max())]
    is_stream = kernel.node_opcode == OPCODES["parameter"]
    is_stream = is_stream | (kernel.node_feat[:, IS_ROOT] > 0)
    n_streams = sum(bool(is_stream[v]) for v, shape in enumerate(shapes) if shape == shapes[main])
    return TileProblem(
        shape=shapes[main],
        kernel=weight,
        element_bytes=int(element_bytes(kernel.node_feat)[main]),
        n_streams=max(1, n_streams),
    )


def tile_units(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return how many elements one unit of a bound covers, per dimension of `shape`."""
    units = np.ones(len(shape), np.int64)
    units[-1:] = LANES
    units[-2:-1] = SUBLANES
    return units


def working_set_bytes(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c,) bytes of scratch that each config (c, 24) needs; operands twice."""
    output, operand, weight = _tile_elements(problem, config_feat)
    elements = output * problem.n_streams + 2 * (operand + weight)
    return elements * problem.element_bytes


def tile_runtime_ns(
    kernel: GraphArrays | TileProblem, config_feat: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of tile configs (c, 24)."""
    problem = kernel if isinstance(kernel, TileProblem) else tile_problem(kernel)
    output, operand, weight = _tile_elements(problem, config_feat)
    walked = _grid(problem.shape, config_feat[:, OUTPUT_BOUNDS])
    output_steps = walked.prod(axis=1)
    moved = output_steps * output * problem.n_streams
    steps = output_steps
    arithmetic_ns = output_steps * output * problem.n_streams / (FLOPS_PER_NS / 64)
    if problem.kernel:
        contracted = _grid(problem.kernel, config_feat[:, KERNEL_BOUNDS])[:, :-1].prod(axis=1)
        depth = _tile_sizes(problem.kernel, config_feat[:, KERNEL_BOUNDS])[:, :-1].prod(axis=1)
        steps = output_steps * contracted
        stays = contracted == 1
        loads = np.where(stays, walked[:, :-1].prod(axis=1), steps)
        moved = moved + loads * operand + steps * weight
        arithmetic_ns = 2.0 * steps * output * depth / FLOPS_PER_NS
    excess = working_set_bytes(problem, config_feat) / SCRATCH_BYTES - 1
    spill = 1 + np.minimum(SPILL * np.maximum(excess, 0), MAX_SPILL)
    memory_ns = moved * problem.element_bytes * spill / BYTES_PER_NS
    return LAUNCH_NS + steps * STEP_OVERHEAD_NS + np.maximum(arithmetic_ns, memory_ns)


def _tile_sizes(shape: tuple[int, ...], bounds: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c, rank) elements of one tile along each dimension, padded to whole units."""
    return bounds[:, : len(shape)].astype(np.int64) * tile_units(shape)


def _grid(shape: tuple[int, ...], bounds: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c, rank) number of tiles along each dimension; the last may be ragged."""
    return -(-np.array(shape, np.int64) // _tile_sizes(shape, bounds))


def _tile_elements(
    problem: TileProblem, config_feat: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (c,) elements of one tile of the output, of the operand and of the weight."""
    tile = _tile_sizes(problem.shape, config_feat[:, OUTPUT_BOUNDS])
    output = tile.prod(axis=1)
    if not problem.kernel:
        return output, np.zeros_like(output), np.zeros_like(output)
    weight_tile = _tile_sizes(problem.kernel, config_feat[:, KERNEL_BOUNDS])
    rows = tile[:, :-1].prod(axis=1)
    return output, rows * weight_tile[:, -2], weight_tile.prod(axis=1)
