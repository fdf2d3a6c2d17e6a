"""A block's work on nodes in few passes, for GPUs: as models/layout/plain_ops.py, fused by Triton.

What a kernel takes in and gives out is all that moves between a GPU's memory and its processors,
which is what these networks wait for. Each is an operation of torch, which can be counted.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels, p shares.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.library import custom_op

from models.layout import plain_ops
from models.layout.inputs import Aggregation, SparseProduct
from models.layout.plain_ops import Norm, Pullback

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_CONFIGS = 1024  # that one program softmaxes over
TILE = 4096  # values of a tensor that a program holds at once
N_PROGRAMS = 1024  # that share rows where each leaves a part of a sum
POOLED_NODES = 128  # of a program
WEIGHT_ROWS = 8192  # of a weight's gradient that are added up in storage precision


def _operation(function: Function) -> Function:
    """Make a function that launches a kernel an operation; without values it only allocates."""
    name = f"tpugraphs::{function.__name__.strip('_')}"
    operation: Any = custom_op(name, function, mutates_args=())
    operation.register_fake(function)
    return operation


def attend(gated: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Pullback]:
    if sharpness is None or gated.shape[1] > MAX_CONFIGS:
        return plain_ops.attend(gated, sharpness)

    def pullback(grad: Tensor) -> tuple[Tensor, Tensor]:
        of_gated, slopes = _attend_backward(grad, gated, sharpness)
        return of_gated, slopes.sum()

    return _attend(gated, sharpness), pullback


def aggregate(
    x: Tensor, norm: Norm, weights: Tensor, added: Tensor, aggregation: Aggregation
) -> Tensor:
    h = _norm(x, *norm)[0]
    projected = h.flatten(0, 1) @ weights.flatten(0, 1).T
    out = _product(aggregation.joint, projected.view(*x.shape[:2], 3, -1), added)
    return out.flatten(2)


def aggregate_backward(
    grad: Tensor, x: Tensor, norm: Norm, weights: Tensor, aggregation: Aggregation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nothing = torch.zeros(grad.shape[2], dtype=grad.dtype, device=grad.device)
    given = grad[:, :, None]
    projected = _product(aggregation.joint, given, nothing, transposed=True).flatten(2)
    h, mean, rstd = _norm(x, *norm)
    rows, joint = projected.flatten(0, 1), weights.flatten(0, 1)
    of_weights = torch.zeros_like(joint, dtype=torch.float32)
    add_weight_gradient(of_weights, rows, h.flatten(0, 1))
    of_x, of_gain, of_shift = _norm_backward((rows @ joint).view_as(x), x, mean, rstd, norm.gain)
    return of_x, of_gain.sum(0), of_shift.sum(0), of_weights.view_as(weights)


def _product(
    product: SparseProduct, x: Tensor, added: Tensor, *, transposed: bool = False
) -> Tensor:
    """Multiply (n, c, p, h), whose rows stand p by p, by a matrix (r, p · n), or the other way."""
    matrix = product.transposed if transposed else product.matrix
    parts = 3 if transposed else 1
    entries = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return _sparse_rows(*entries, x, added, matrix.shape[0] // parts, parts)


def pool(x: Tensor, norm: Norm, shares: Tensor, *, for_gradients: bool) -> tuple[Tensor, ...]:
    sums, largest, place, mean, rstd = _pool(x, *norm, shares)
    highest, program = largest.max(dim=0)
    return sums.sum(0), highest, place.gather(0, program[None])[0], mean, rstd


def pool_backward(
    grads: Sequence[Tensor], x: Tensor, gain: Tensor, shares: Tensor, kept: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    of_sums, of_largest = (grad.contiguous() for grad in grads)
    of_x, of_gain, of_shift = _pool_backward(of_sums, of_largest, x, gain, shares, *kept)
    return of_x, of_gain.sum((0, 1)), of_shift.sum((0, 1))


def add_weight_gradient(into: Tensor, grad: Tensor, given: Tensor) -> None:
    """See plain_ops; summed in parts, which keeps a GPU busy and float16 finite."""
    whole = len(grad) // WEIGHT_ROWS * WEIGHT_ROWS
    parts = [tensor[:whole].unflatten(0, (-1, WEIGHT_ROWS)) for tensor in (grad, given)]
    into += torch.bmm(parts[0].transpose(1, 2), parts[1]).sum(0, dtype=torch.float32)
    into += grad[whole:].T @ given[whole:]


@_operation
def weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    out = torch.empty_like(messages)
    size, (_, n_configs, width) = messages.numel(), messages.shape
    given = messages, sharpness, normaliser, out, size, n_configs * width, width
    _launch("weigh", (-(-size // 1024),), *given, B=1024)
    return out


@_operation
def log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    n_nodes, n_configs, width = messages.shape
    out = messages.new_empty(n_nodes, 1, width, dtype=torch.float32)
    block, configs = (min(64, _power_of_two(size)) for size in (width, n_configs))
    grid = n_nodes, -(-width // block)
    _launch("log_sum_exp", grid, messages, sharpness, out, n_configs, width, C=configs, B=block)
    return out


@_operation
def _norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    found = torch.empty_like(x), mean, torch.empty_like(mean)
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    size, wide = _tile(width)
    _launch("norm", (-(-rows // size),), x, gain, shift, *found, rows, width, eps, R=size, H=wide)
    return found


@_operation
def _norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    n_programs = min(N_PROGRAMS, max(1, rows))
    part = gain.new_empty(n_programs, width)
    found = torch.empty_like(x), part, torch.empty_like(part)
    size, wide = _tile(width)
    given = grad, x, mean, rstd, gain, *found, rows, width, -(-rows // n_programs)
    _launch("norm_backward", (n_programs,), *given, R=size, H=wide)
    return found


@_operation
def _sparse_rows(
    starts: Tensor,
    columns: Tensor,
    values: Tensor,
    x: Tensor,
    added: Tensor,
    n_out: int,
    parts_out: int,
) -> Tensor:
    n_in, n_configs, parts_in, width = x.shape
    out = x.new_empty(n_out, n_configs, parts_out, width)
    stride = 0 if added.ndim == 1 else width
    grid = n_out * parts_out, -(-n_configs * width // 1024)
    given = starts, columns, values, x, added, out, n_in, n_out, n_configs, width
    _launch("sparse_rows", grid, *given, parts_in, parts_out, stride, B=1024)
    return out


@_operation
def _attend(gated: Tensor, sharpness: Tensor) -> Tensor:
    out = torch.empty_like(gated)
    grid, widths, sizes = _by_node(gated)
    _launch("attend", grid, gated, sharpness, out, *widths, **sizes)
    return out


@_operation
def _attend_backward(grad: Tensor, gated: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    grid, widths, sizes = _by_node(gated)
    found = torch.empty_like(gated), gated.new_empty(grid, dtype=torch.float32)
    _launch("attend_backward", grid, grad, gated, sharpness, *found, *widths, **sizes)
    return found


@_operation
def _pool(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_nodes, n_configs, width = x.shape
    programs = -(-n_nodes // POOLED_NODES)
    sums = shares.new_empty(programs, len(shares), n_configs, width)
    largest = shares.new_empty(programs, n_configs, width)
    place = torch.empty_like(largest, dtype=torch.int64)
    mean = shares.new_empty(n_nodes, n_configs, 1)
    found = sums, largest, place, mean, torch.empty_like(mean)
    sizes = n_nodes, n_configs, width, len(shares), POOLED_NODES, eps
    grid = n_configs, programs
    _launch("pool", grid, x, gain, shift, shares, *found, *sizes, **_pool_tile(shares, width))
    return found


@_operation
def _pool_backward(
    of_sums: Tensor,
    of_largest: Tensor,
    x: Tensor,
    gain: Tensor,
    shares: Tensor,
    place: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    n_nodes, n_configs, width = x.shape
    part = gain.new_empty(-(-n_nodes // POOLED_NODES), n_configs, width)
    found = torch.empty_like(x), part, torch.empty_like(part)
    given = of_sums, of_largest, x, gain, shares, place, mean, rstd, *found
    sizes = n_nodes, n_configs, width, len(shares), POOLED_NODES
    grid = n_configs, len(part)
    _launch("pool_backward", grid, *given, *sizes, **_pool_tile(shares, width))
    return found


def _launch(name: str, grid: tuple[int, ...], *given: Any, **sizes: int) -> None:
    tensors = [value for value in given if isinstance(value, Tensor)]
    if not all(grid) or any(isinstance(t, FakeTensor) or t.is_meta for t in tensors):
        return  # counted, with or without Triton
    from models.layout import triton_kernels

    assert all(tensor.is_contiguous() for tensor in tensors), name
    getattr(triton_kernels, name)[grid](*given, **sizes)


def _tile(width: int) -> tuple[int, int]:
    """Return how many rows of so many channels a program takes at once, and the padded width."""
    wide = _power_of_two(width)
    return max(1, TILE // 2 // wide), wide


def _pool_tile(shares: Tensor, width: int) -> dict[str, int]:
    wide, count = _power_of_two(width), _power_of_two(len(shares))
    return {"P": count, "R": max(1, TILE // 2 // wide // count), "H": wide}


def _by_node(gated: Tensor) -> tuple[tuple[int, int], tuple[int, int], dict[str, int]]:
    n_nodes, n_configs, width = len(gated), gated.shape[1], gated.shape[2] // 2
    configs = _power_of_two(n_configs)
    block = min(_power_of_two(width), max(1, TILE // configs))
    grid = n_nodes, -(-width // block)
    return grid, (n_configs, width), {"C": configs, "B": block, "num_warps": 8}


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
