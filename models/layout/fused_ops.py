"""A block's work on nodes in few passes, for GPUs: as models/layout/plain_ops.py, fused by Triton.

What a kernel takes in and gives out is all that moves between a GPU's memory and its processors,
which is what these networks wait for. Each kernel is an operation of torch, so that tools which
count or trace see it; on a CPU Triton's interpreter runs them, in tests.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels, p shares.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.library import custom_op

from models.layout import plain_ops
from models.layout.plain_ops import Pullback, messages_

if TYPE_CHECKING:
    from models.layout.sparse_aggregation import Aggregation, SparseProduct

__all__ = ["messages_"]

MAX_CONFIGS = 1024  # that one program softmaxes over
TILE = 4096  # values of a tensor that a program holds at once
N_PROGRAMS = 1024  # that share rows where each leaves a part of a sum
POOLED_NODES = 128  # of a program
WEIGHT_ROWS = 8192  # of a weight's gradient that are added up in storage precision


def attend(gated: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Pullback]:
    """See plain_ops.attend."""
    if sharpness is None or gated.shape[1] > MAX_CONFIGS:
        return plain_ops.attend(gated, sharpness)

    def pullback(grad: Tensor) -> tuple[Tensor, Tensor]:
        of_gated, slopes = _attend_backward(grad, gated, sharpness)
        return of_gated, slopes.sum()

    return _attend(gated, sharpness), pullback


def weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    """See plain_ops.weigh."""
    return _weigh(messages, sharpness, normaliser)


def log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    """See plain_ops.log_sum_exp."""
    return _log_sum_exp(messages, sharpness)


def aggregate(
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    eps: float,
    weights: Tensor,
    added: Tensor,
    aggregation: "Aggregation",
) -> Tensor:
    """See plain_ops.aggregate."""
    h = _norm(x, gain, shift, eps)[0]
    projected = h.flatten(0, 1) @ weights.flatten(0, 1).T
    out: Tensor = _product(aggregation.joint, projected.view(*x.shape[:2], 3, -1), added)
    return out.flatten(2)


def aggregate_backward(
    grad: Tensor,
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    eps: float,
    weights: Tensor,
    aggregation: "Aggregation",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See plain_ops.aggregate_backward."""
    nothing = torch.zeros(grad.shape[2], dtype=grad.dtype, device=grad.device)
    given = grad[:, :, None]
    projected = _product(aggregation.joint, given, nothing, transposed=True).flatten(2)
    h, mean, rstd = _norm(x, gain, shift, eps)
    rows, joint = projected.flatten(0, 1), weights.flatten(0, 1)
    of_weights = torch.zeros_like(joint, dtype=torch.float32)
    add_weight_gradient(of_weights, rows, h.flatten(0, 1))
    of_x, of_gain, of_shift = _norm_backward((rows @ joint).view_as(x), x, mean, rstd, gain)
    return of_x, of_gain.sum(0), of_shift.sum(0), of_weights.view_as(weights)


def _product(
    product: "SparseProduct", x: Tensor, added: Tensor, *, transposed: bool = False
) -> Tensor:
    """Multiply (n, c, p, h), whose rows stand p by p, by a matrix (r, p · n), or the other way."""
    matrix = product.transposed if transposed else product.matrix
    parts = 3 if transposed else 1
    entries = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return _sparse_rows(*entries, x, added, matrix.shape[0] // parts, parts)


def pool(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float, shares: Tensor, *, for_gradients: bool
) -> tuple[Tensor, ...]:
    """See plain_ops.pool."""
    sums, largest, place, mean, rstd = _pool(x, gain, shift, eps, shares)
    highest, program = largest.max(dim=0)
    return sums.sum(0), highest, place.gather(0, program[None])[0], mean, rstd


def pool_backward(
    of_sums: Tensor,
    of_largest: Tensor,
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    shares: Tensor,
    place: Tensor,
    *norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See plain_ops.pool_backward."""
    given = of_sums.contiguous(), of_largest.contiguous(), x, gain, shares, place, *norm
    of_x, of_gain, of_shift = _pool_backward(*given)
    return of_x, of_gain.sum((0, 1)), of_shift.sum((0, 1))


def add_weight_gradient(into: Tensor, grad: Tensor, given: Tensor) -> None:
    """See plain_ops; summed in parts, which keeps a GPU busy and float16 finite."""
    whole = len(grad) // WEIGHT_ROWS * WEIGHT_ROWS
    parts = [tensor[:whole].unflatten(0, (-1, WEIGHT_ROWS)) for tensor in (grad, given)]
    into += torch.bmm(parts[0].transpose(1, 2), parts[1]).sum(0, dtype=torch.float32)
    into += grad[whole:].T @ given[whole:]


# The operations: each with its kernel, and with what it returns where there are no values.


@custom_op("tpugraphs::norm", mutates_args=())
def _norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    found = _empty_norm(x, gain, shift, eps)
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    size, wide = _tile(width)
    _launch("norm", (-(-rows // size),), x, gain, shift, *found, rows, width, eps, R=size, H=wide)
    return found


@_norm.register_fake
def _empty_norm(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    return torch.empty_like(x), mean, torch.empty_like(mean)


@custom_op("tpugraphs::norm_backward", mutates_args=())
def _norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    found = _empty_norm_backward(grad, x, mean, rstd, gain)
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    size, wide = _tile(width)
    per_program = -(-rows // len(found[1]))
    given = grad, x, mean, rstd, gain, *found, rows, width, per_program
    _launch("norm_backward", (len(found[1]),), *given, R=size, H=wide)
    return found


@_norm_backward.register_fake
def _empty_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    n_programs = min(N_PROGRAMS, max(1, x.shape[0] * x.shape[1]))
    part = gain.new_empty(n_programs, x.shape[-1])
    return torch.empty_like(x), part, torch.empty_like(part)


@custom_op("tpugraphs::sparse_rows", mutates_args=())
def _sparse_rows(
    starts: Tensor,
    columns: Tensor,
    values: Tensor,
    x: Tensor,
    added: Tensor,
    n_out: int,
    parts_out: int,
) -> Tensor:
    out = _empty_rows(starts, columns, values, x, added, n_out, parts_out)
    n_in, n_configs, parts_in, width = x.shape
    stride = 0 if added.ndim == 1 else width
    grid = n_out * parts_out, -(-n_configs * width // 1024)
    given = starts, columns, values, x, added, out, n_in, n_out, n_configs, width
    _launch("sparse_rows", grid, *given, parts_in, parts_out, stride, B=1024)
    return out


@_sparse_rows.register_fake
def _empty_rows(
    starts: Tensor,
    columns: Tensor,
    values: Tensor,
    x: Tensor,
    added: Tensor,
    n_out: int,
    parts_out: int,
) -> Tensor:
    return x.new_empty(n_out, x.shape[1], parts_out, x.shape[3])


@custom_op("tpugraphs::attend", mutates_args=())
def _attend(gated: Tensor, sharpness: Tensor) -> Tensor:
    out = torch.empty_like(gated)
    grid, sizes = _by_node(gated, gated.shape[2] // 2)
    _launch("attend", grid, gated, sharpness, out, *sizes[:2], **sizes[2])
    return out


@_attend.register_fake
def _(gated: Tensor, sharpness: Tensor) -> Tensor:
    return torch.empty_like(gated)


@custom_op("tpugraphs::attend_backward", mutates_args=())
def _attend_backward(grad: Tensor, gated: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    found = _empty_attend_backward(grad, gated, sharpness)
    grid, sizes = _by_node(gated, gated.shape[2] // 2)
    _launch("attend_backward", grid, grad, gated, sharpness, *found, *sizes[:2], **sizes[2])
    return found


@_attend_backward.register_fake
def _empty_attend_backward(grad: Tensor, gated: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    grid, _ = _by_node(gated, gated.shape[2] // 2)
    return torch.empty_like(gated), gated.new_empty(grid, dtype=torch.float32)


@custom_op("tpugraphs::weigh", mutates_args=())
def _weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    out = torch.empty_like(messages)
    size, (_, n_configs, width) = messages.numel(), messages.shape
    given = messages, sharpness, normaliser, out, size, n_configs * width, width
    _launch("weigh", (-(-size // 1024),), *given, B=1024)
    return out


@_weigh.register_fake
def _(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    return torch.empty_like(messages)


@custom_op("tpugraphs::log_sum_exp", mutates_args=())
def _log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    out = _empty_log_sum_exp(messages, sharpness)
    _, n_configs, width = messages.shape
    block = min(64, _power_of_two(width))
    grid = len(messages), -(-width // block)
    configs = min(64, _power_of_two(n_configs))
    _launch("log_sum_exp", grid, messages, sharpness, out, n_configs, width, C=configs, B=block)
    return out


@_log_sum_exp.register_fake
def _empty_log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    return messages.new_empty(len(messages), 1, messages.shape[2], dtype=torch.float32)


@custom_op("tpugraphs::pool", mutates_args=())
def _pool(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    found = _empty_pool(x, gain, shift, eps, shares)
    n_nodes, n_configs, width = x.shape
    sizes = n_nodes, n_configs, width, len(shares), POOLED_NODES, eps
    grid = n_configs, len(found[0])
    _launch("pool", grid, x, gain, shift, shares, *found, *sizes, **_pool_tile(shares, width))
    return found


@_pool.register_fake
def _empty_pool(
    x: Tensor, gain: Tensor, shift: Tensor, eps: float, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    n_nodes, *rest = x.shape
    programs = -(-n_nodes // POOLED_NODES)
    sums = shares.new_empty(programs, len(shares), *rest)
    largest = shares.new_empty(programs, *rest)
    mean = shares.new_empty(n_nodes, rest[0], 1)
    place = torch.empty_like(largest, dtype=torch.int64)
    return sums, largest, place, mean, torch.empty_like(mean)


@custom_op("tpugraphs::pool_backward", mutates_args=())
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
    given = of_sums, of_largest, x, gain, shares, place, mean, rstd
    found = _empty_pool_backward(*given)
    n_nodes, n_configs, width = x.shape
    sizes = n_nodes, n_configs, width, len(shares), POOLED_NODES
    grid = n_configs, len(found[1])
    _launch("pool_backward", grid, *given, *found, *sizes, **_pool_tile(shares, width))
    return found


@_pool_backward.register_fake
def _empty_pool_backward(
    of_sums: Tensor,
    of_largest: Tensor,
    x: Tensor,
    gain: Tensor,
    shares: Tensor,
    place: Tensor,
    mean: Tensor,
    rstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    part = gain.new_empty(-(-x.shape[0] // POOLED_NODES), *x.shape[1:])
    return torch.empty_like(x), part, torch.empty_like(part)


def _launch(name: str, grid: tuple[int, ...], *given: Any, **sizes: int) -> None:
    from models.layout import triton_kernels

    for tensor in given:
        assert not isinstance(tensor, Tensor) or tensor.is_contiguous(), name
    if all(grid):
        getattr(triton_kernels, name)[grid](*given, **sizes)


def _tile(width: int) -> tuple[int, int]:
    """Return how many rows of so many channels a program takes at once, and the padded width."""
    wide = _power_of_two(width)
    return max(1, TILE // 2 // wide), wide


def _pool_tile(shares: Tensor, width: int) -> dict[str, int]:
    wide, count = _power_of_two(width), _power_of_two(len(shares))
    return {"P": count, "R": max(1, TILE // 2 // wide // count), "H": wide}


def _by_node(x: Tensor, width: int) -> tuple[tuple[int, int], tuple[int, int, dict[str, int]]]:
    configs = _power_of_two(x.shape[1])
    block = min(_power_of_two(width), max(1, TILE // configs))
    return (len(x), -(-width // block)), (
        x.shape[1],
        width,
        {"C": configs, "B": block, "num_warps": 8},
    )


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
