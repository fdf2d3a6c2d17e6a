"""A block's work on nodes in few passes, for GPUs: the functions of plain_ops.py, fused by Triton.

GPU memory limits these networks, so each pass over a tensor costs time. A kernel computes the
attention and the products around it for a whole node, so the messages are never stored in the
forward pass.

Products within a kernel need tensor cores of compute capability 8.0, 16-bit numbers, and a node
that fits a program. Otherwise cuBLAS computes these products, and the kernels read the results.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels, a bottleneck
channels, p shares.
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from common.progress import log
from models.config.networks import SageConfig
from models.layout import plain_ops
from models.layout.inputs import Aggregation, SparseAggregation, SparseProduct
from models.layout.plain_ops import Norm, add_weight_gradient, row_slices

# Largest number of configs in the softmax of one program.
MAX_CONFIGS = 1024
# Largest number of configs and channels in a program that also computes products of a node.
MAX_PRODUCTS = 128, 256
# Values of a tensor that a program of few warps loads at once.
TILE = 2048
# Number of programs if each program writes a part of a sum.
N_PROGRAMS = 528
# Nodes of one program of `pool`.
POOLED_NODES = 128
# Wider tiles need more warps, and no loads ahead of a loop, to fit the registers.
NARROW = 128
# Smallest number of rows and columns of a product within a program.
MIN_DOT = 16
# Largest number of channels of a program that takes all configs of a node.
MAX_BLOCK = 32
# Largest number of warps of a program. More warps have too few registers each.
MAX_WARPS = 16
# Triton compiles for GPUs of this compute capability or higher, and its products use tensor cores
# from the second one on.
MIN_CAPABILITY, DOT_CAPABILITY = (7, 0), (8, 0)

# GPUs on which a kernel failed.
_failing_gpus = set[torch.device]()


def ops_for(x: Tensor, config: SageConfig) -> ModuleType:
    """Return this module for tensors on a GPU that runs its kernels, else `plain_ops`.

    The first call for a size compiles and runs each kernel on one node. If a kernel fails, the
    process uses `plain_ops` on this GPU from then on, and logs one line.

    Args:
        x: (n, c, h) tensor of the network.
        config: Config of the network.
    """
    device = x.device
    if not config.fused or not _has_triton(device):
        return plain_ops
    if device not in _failing_gpus:
        bottleneck = max(1, config.hidden // config.channel_reduction)
        configs = min(MAX_CONFIGS, _power_of_two(x.shape[1]))
        if fault := _fault(device, x.dtype, config.hidden, bottleneck, configs):
            _failing_gpus.add(device)
            log.warning(
                f"{device}: a fused kernel does not run: {fault[:200]}; plain PyTorch operators "
                "replace all fused kernels, see docs/guides/gpu.md"
            )
    return plain_ops if device in _failing_gpus else sys.modules[__name__]


@cache
def _has_triton(device: torch.device) -> bool:
    is_recent = device.type == "cuda" and _capability(device) >= MIN_CAPABILITY
    return is_recent and find_spec("triton") is not None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    # Triton's interpreter runs on a CPU, as a card with all features.
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


@cache
def _fault(
    device: torch.device, dtype: torch.dtype, width: int, bottleneck: int, n_configs: int
) -> str:
    # The error of a kernel, "" if all kernels run.
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            x = torch.zeros(1, n_configs, width, dtype=dtype, device=device)
            _run_each_kernel(x, bottleneck)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        raise
    # Triton, its C compiler and the driver raise errors of many classes.
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def _run_each_kernel(x: Tensor, bottleneck: int) -> None:
    width, h_h = x.shape[2], (x.shape[2],) * 2
    gain, sharpness = x.new_ones(width, dtype=torch.float32), x.new_ones((), dtype=torch.float32)
    norm, bias, weights = Norm(gain, gain, 1e-5), x.new_zeros(width), x.new_zeros(3, *h_h)
    no_edges = torch.zeros(0, 2, dtype=torch.int64)
    neighbours = SparseAggregation(no_edges, 1, varying=torch.zeros(1, dtype=torch.int64))
    edges = neighbours.to(x.device).every
    for addend in (bias, bias.view(1, 1, -1)):
        aggregate(x, norm, weights, addend, edges)
    aggregate_backward(x, x, norm, weights, edges)
    for n_shares in (2, 3):
        shares = gain.new_ones(n_shares, 1)
        sums, largest, *residuals = pool(x, norm, shares, for_gradients=True)
        pool_backward((sums, largest), x, gain, shares, residuals)
    shapes = (bottleneck, width), (bottleneck,), (width, bottleneck), (width,), (width, 2 * width)
    gates = [*(x.new_zeros(shape) for shape in shapes), bias]
    totals = [torch.zeros_like(gate, dtype=torch.float32) for gate in gates[:5]]
    attend_and_add(x, x, sharpness, gates, torch.empty_like(x))
    attend_and_add_backward(x, x, sharpness, gates, torch.empty_like(x), totals)


def attend_and_add(
    x: Tensor, y: Tensor, sharpness: Tensor | None, weights: Sequence[Tensor], out: Tensor
) -> None:
    if sharpness is None or y.shape[1] > MAX_CONFIGS:
        return plain_ops.attend_and_add(x, y, sharpness, weights, out)
    if _fits_a_program(y, sharpness):
        sizes = {**_node_sizes(y, weights[0]), "H": max(MIN_DOT, _power_of_two(y.shape[2]))}
        arguments = x, y, sharpness, *weights, out, y.shape[1]
        _launch("attend_and_add", (len(y),), *arguments, **sizes)
    else:
        (inner, gate), _ = plain_ops.channel_gate(y, *weights[:4])
        attention = _attend(inner, gate, sharpness)
        plain_ops.add_projection(x, attention.chunk(2, -1), *weights[4:], out=out)
    return None


def attend_and_add_backward(
    grad: Tensor,
    y: Tensor,
    sharpness: Tensor | None,
    weights: Sequence[Tensor],
    of_y: Tensor,
    totals: list[Tensor],
) -> Tensor | None:
    if sharpness is None or y.shape[1] > MAX_CONFIGS:
        return plain_ops.attend_and_add_backward(grad, y, sharpness, weights, of_y, totals)
    w1, b1, w2, b2, projection, _ = weights
    rows = grad.flatten(0, 1)
    if _fits_a_program(y, sharpness):
        results = _attend_and_add_backward(grad, y, sharpness, weights)
        bottleneck, attention, *halves, slopes, of_bias = results
        add_weight_gradient(totals[4], rows, attention.flatten(0, 1))
        parts = _gate_backward(halves, y, bottleneck, (w1, w2), of_y)
        torch._foreach_add_(totals[:4], [part.sum(0) for part in parts])
        totals.append(of_bias.sum(0))
        return slopes.sum()
    (inner, gate), bottleneck = plain_ops.channel_gate(y, w1, b1, w2, b2)
    attention = _attend(inner, gate, sharpness)
    add_weight_gradient(totals[4], rows, attention.flatten(0, 1))
    # From here on, `attention` contains its gradient.
    torch.mm(rows, projection, out=attention.flatten(0, 1))
    grid, sizes = _by_node(inner, per_warp=512)
    slopes = inner.new_empty(grid, dtype=torch.float32)
    of_halves = torch.empty_like(inner), torch.empty_like(inner)
    arguments = attention, inner, gate, sharpness, *of_halves, slopes, y.shape[1]
    _launch("attend_backward", grid, *arguments, **sizes)
    plain_ops.gate_backward(of_halves, y, (inner, bottleneck), (w1, w2), of_y, totals)
    return slopes.sum()


def aggregate(
    x: Tensor, norm: Norm, weights: Tensor, addend: Tensor, aggregation: Aggregation
) -> Tensor:
    h = _norm(x, *norm)[0]
    if _has_cores(x):
        return _aggregate_rows(aggregation.by_part, h, weights.mT.contiguous(), addend)[0]
    projections = _rows_by(h.flatten(0, 1), weights.flatten(0, 1).T)
    out = _product(aggregation.joint, projections.view(*x.shape[:2], 3, -1), addend)
    return out.flatten(2)


def aggregate_backward(
    grad: Tensor, x: Tensor, norm: Norm, weights: Tensor, aggregation: Aggregation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nothing = torch.zeros(grad.shape[2], dtype=grad.dtype, device=grad.device)
    if _has_cores(x):
        matrix = aggregation.joint.transposed
        of_h, projections = _aggregate_rows(matrix, grad, weights, nothing, stores=True)
    else:
        one_part = grad[:, :, None]
        projections = _product(aggregation.joint, one_part, nothing, transposed=True).flatten(2)
        of_h = _rows_by(projections.flatten(0, 1), weights.flatten(0, 1)).view_as(x)
    h, mean, rstd = _norm(x, *norm)
    rows, joint = projections.flatten(0, 1), weights.flatten(0, 1)
    of_weights = torch.zeros_like(joint, dtype=torch.float32)
    add_weight_gradient(of_weights, rows, h.flatten(0, 1))
    of_x, of_gain, of_shift = _norm_backward(of_h, x, mean, rstd, norm.gain)
    return of_x, of_gain.sum(0), of_shift.sum(0), of_weights.view_as(weights)


def pool(x: Tensor, norm: Norm, shares: Tensor, *, for_gradients: bool) -> tuple[Tensor, ...]:
    n_nodes, n_configs, width = x.shape
    programs = -(-n_nodes // POOLED_NODES)
    sums = shares.new_empty(programs, len(shares), n_configs, width)
    largest = shares.new_empty(programs, n_configs, width)
    place = torch.empty_like(largest, dtype=torch.int64)
    mean = shares.new_empty(n_nodes, n_configs, 1)
    rstd = torch.empty_like(mean)
    wide = _power_of_two(width)
    sizes = {"P": _power_of_two(len(shares)), "R": max(1, TILE // 2 // wide), "H": wide}
    sizes["num_warps"] = 2 if wide <= NARROW else 4
    tensors = x, norm.gain, norm.shift, shares, sums, largest, place, mean, rstd
    _launch(
        "pool",
        (n_configs, programs),
        *(*tensors, n_nodes, n_configs, POOLED_NODES, norm.eps),
        **{"n_shares": len(shares), "h": width, **sizes},
    )
    highest, program = largest.max(dim=0)
    return sums.sum(0), highest, place.gather(0, program[None])[0], mean, rstd


def pool_backward(
    grads: Sequence[Tensor], x: Tensor, gain: Tensor, shares: Tensor, residuals: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    of_sums, of_largest = (grad.contiguous() for grad in grads)
    n_nodes, n_configs, width = x.shape
    part = gain.new_empty(-(-n_nodes // POOLED_NODES), n_configs, width)
    results = torch.empty_like(x), part, torch.empty_like(part)
    tensors = of_sums, of_largest, x, gain, shares, *residuals, *results
    size, wide = _tile(width)
    _launch(
        "pool_backward",
        (n_configs, len(part)),
        *(*tensors, n_nodes, n_configs, POOLED_NODES),
        **{"n_shares": len(shares), "h": width, "R": size, "H": wide},
    )
    return results[0], results[1].sum((0, 1)), results[2].sum((0, 1))


def _rows_by(rows: Tensor, matrix: Tensor) -> Tensor:
    out = rows.new_empty(len(rows), matrix.shape[1])
    for part in row_slices(rows, out):
        torch.mm(rows[part], matrix, out=out[part])
    return out


def _product(
    product: SparseProduct, x: Tensor, addend: Tensor, *, transposed: bool = False
) -> Tensor:
    # x is (n, c, p, h). The matrix has p · n columns, ordered by part.
    matrix = product.transposed if transposed else product.matrix
    parts_out = 3 if transposed else 1
    n_in, n_configs, parts_in, width = x.shape
    n_out = matrix.shape[0] // parts_out
    out = x.new_empty(n_out, n_configs, parts_out, width)
    entries = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    sizes = {"h": width, "parts_in": parts_in, "parts_out": parts_out}
    _launch(
        "sparse_rows",
        (n_out * parts_out, -(-n_configs * width // 1024)),
        *(*entries, x, addend, out, n_in, n_out, n_configs),
        **{**sizes, "added_stride": 0 if addend.ndim == 1 else width, "B": 1024},
    )
    return out


def _aggregate_rows(
    matrix: Tensor, x: Tensor, weights: Tensor, addend: Tensor, *, stores: bool = False
) -> tuple[Tensor, Tensor]:
    # The matrix has 3 parts of rows. The second result is its product with x, (r, c, 3h).
    n_out, (_, n_configs, width) = matrix.shape[0] // 3, x.shape
    out = x.new_empty(n_out, n_configs, width)
    aggregated = x.new_empty(n_out, n_configs, 3 * width) if stores else out
    wide = max(MIN_DOT, _power_of_two(width))
    rows = 64 if n_configs > 32 else 32
    sizes = {"h": width, "added_stride": 0 if addend.ndim == 1 else width, "stores": stores}
    sizes |= {"R": rows, "H": wide, "K": min(64, wide)}
    sizes |= {"num_warps": 4 if wide <= NARROW else 8, "num_stages": 1}
    entries = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    arguments = *entries, x, weights, addend, out, aggregated, n_out, n_configs
    _launch("aggregate_rows", (n_out, -(-n_configs // rows)), *arguments, **sizes)
    return out, aggregated


def _norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    results = torch.empty_like(x), mean, torch.empty_like(mean)
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    size, wide = _tile(width)
    grid = (-(-rows // size),)
    _launch("norm", grid, x, gain, shift, *results, rows, eps, h=width, R=size, H=wide)
    return results


def _norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    n_programs = min(N_PROGRAMS, max(1, rows))
    part = gain.new_empty(n_programs, width)
    results = torch.empty_like(x), part, torch.empty_like(part)
    size, wide = _tile(width)
    arguments = grad, x, mean, rstd, gain, *results, rows, -(-rows // n_programs)
    _launch("norm_backward", (n_programs,), *arguments, h=width, R=size, H=wide)
    return results


def _attend(inner: Tensor, gate: Tensor, sharpness: Tensor) -> Tensor:
    out = inner.new_empty(*inner.shape[:2], 2 * inner.shape[2])
    grid, sizes = _by_node(inner, per_warp=1024)
    _launch("attend", grid, inner, gate, sharpness, out, inner.shape[1], **sizes)
    return out


def _attend_and_add_backward(
    grad: Tensor, y: Tensor, sharpness: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    # Returns the bottleneck channels, the attention, the gradients of gelu(y) and of the gate, and
    # parts of those of the sharpness and of P's bias, one per node.
    n_nodes, n_configs, width = y.shape
    widths = len(weights[0]), 2 * width, width, width
    tensors = [y.new_empty(n_nodes, n_configs, size) for size in widths]
    slopes, of_bias = y.new_empty(2, n_nodes, width, dtype=torch.float32)
    results = *tensors, slopes, of_bias
    sizes = {**_node_sizes(y, weights[0]), "K": min(64, max(MIN_DOT, _power_of_two(width)))}
    arguments = grad, y, sharpness, *weights[:5], *results, n_configs
    _launch("attend_and_add_backward", (n_nodes,), *arguments, **sizes)
    return results


def _gate_backward(
    halves: Sequence[Tensor], y: Tensor, small: Tensor, weights: Sequence[Tensor], of_y: Tensor
) -> tuple[Tensor, ...]:
    # Writes the gradient of y, and returns parts of the others, one per program.
    rows, (narrow, width) = y.shape[0] * y.shape[1], weights[0].shape
    n_programs = min(N_PROGRAMS, max(1, rows))
    shapes = (narrow, width), (narrow,), (width, narrow), (width,)
    parts = tuple(y.new_empty(n_programs, *shape, dtype=torch.float32) for shape in shapes)
    tensors = *halves, y, small, *weights, of_y, *parts
    wide, units = (max(MIN_DOT, _power_of_two(size)) for size in (width, narrow))
    sizes = {"h": width, "a": narrow, "R": MIN_DOT, "H": wide, "A": units}
    sizes |= {} if wide <= NARROW else {"num_warps": 8, "num_stages": 1}
    _launch("gate_backward", (n_programs,), *tensors, rows, -(-rows // n_programs), **sizes)
    return parts


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, **sizes: int) -> None:
    from models.layout import triton_kernels

    assert all(v.is_contiguous() for v in arguments if isinstance(v, Tensor)), name
    if all(grid):
        getattr(triton_kernels, name)[grid](*arguments, **sizes)


def _tile(width: int) -> tuple[int, int]:
    # The number of rows that a program takes at once, and the padded width.
    wide = _power_of_two(width)
    return max(1, TILE // wide), wide


def _by_node(y: Tensor, *, per_warp: int) -> tuple[tuple[int, int], dict[str, int]]:
    # Each program takes all configs of a node.
    n_nodes, n_configs, width = y.shape
    configs = max(MIN_DOT, _power_of_two(n_configs))
    fitting = MAX_WARPS * per_warp // configs
    block = min(max(MIN_DOT, _power_of_two(width)), MAX_BLOCK, fitting)
    warps = max(4, configs * block // per_warp)
    grid = n_nodes, -(-width // block)
    return grid, {"h": width, "C": configs, "B": block, "num_warps": warps}


def _node_sizes(y: Tensor, w1: Tensor) -> dict[str, int]:
    # Each program takes all configs of a node.
    (bottleneck, width), n_configs = w1.shape, y.shape[1]
    configs, narrow = (max(MIN_DOT, _power_of_two(size)) for size in (n_configs, bottleneck))
    sizes = {"h": width, "a": bottleneck, "C": configs, "B": MIN_DOT, "A": narrow}
    return {**sizes, "num_warps": max(4, configs // MIN_DOT), "num_stages": 1}


def _fits_a_program(y: Tensor, sharpness: Tensor | None) -> bool:
    # Whether tensor cores compute the products of y's type, for all configs of a node together.
    is_small = y.shape[1] <= MAX_PRODUCTS[0] and y.shape[2] <= MAX_PRODUCTS[1]
    return sharpness is not None and _has_cores(y) and is_small


def _has_cores(x: Tensor) -> bool:
    # Whether products of x's type within a kernel use tensor cores.
    return x.dtype != torch.float32 and _capability(x.device) >= DOT_CAPABILITY


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
