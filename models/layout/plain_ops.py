"""A block's work on nodes, forward and backward, in plain torch: any device, any dtype.

A slice of nodes fits a CPU's cache. models/layout/fused_ops.py has the same functions for GPUs.
models/layout/autograd_ops.py calls the functions of either module.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from models.layout.attention import attend
from models.layout.inputs import Aggregation

SLICE_BYTES = 2 << 20
# A GPU has no such cache and each slice costs launches, so this value only limits memory.
DEVICE_SLICE_BYTES = 256 << 20
# Largest number of values of a matrix in one product of torch.
MAX_VALUES = (1 << 31) - 1
# oneDNN compiles code for each new shape, in .5 ms and .5 MiB. So it multiplies only matrices with
# a multiple of this number of rows. Builds of torch for macOS lack its operation.
ONEDNN_ROWS = 2048
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Norm(NamedTuple):
    """A layer norm over channels, with float32 gain and shift, (h,) each."""

    gain: Tensor
    shift: Tensor
    eps: float


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of x, (n, c, h), into slices, on a CPU of ONEDNN_ROWS rows if they fit."""
    slice_bytes = SLICE_BYTES if x.is_cpu else DEVICE_SLICE_BYTES
    step = max(1, slice_bytes // max(1, x[:1].nbytes))
    unit = ONEDNN_ROWS // gcd(ONEDNN_ROWS, x.shape[1]) if x.is_cpu and HAS_ONEDNN else 1
    step = step // unit * unit or step
    edges = sorted({*range(0, len(x), step), len(x) // unit * unit, len(x)})
    return [slice(*part) for part in pairwise(edges)]


def row_slices(*matrices: Tensor) -> Iterator[slice]:
    """Cut rows into slices in which no matrix has more than MAX_VALUES values."""
    step = MAX_VALUES // max(matrix.shape[1] for matrix in matrices)
    return (slice(start, start + step) for start in range(0, len(matrices[0]), step))


def linear(
    x: Tensor, weight: Tensor, addend: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return x · weightᵀ + addend without a gradient.

    torch's own products call MKL, which does not use AVX-512 on AMD's processors. oneDNN does, so
    it takes half the time there. torch's compiler calls the same operation of oneDNN.

    Args:
        x: (t, a).
        weight: (b, a).
        addend: (b,) or (t, b).
        out: (t, b) result, which may be `addend`. None makes a new tensor.
    """
    is_usual = x.is_cpu and x.dtype == torch.float32 and max(x.shape) % ONEDNN_ROWS == 0
    if not (is_usual and HAS_ONEDNN):
        if addend is None:
            return torch.mm(x, weight.T, out=out)
        return torch.addmm(addend, x, weight.T, out=out)
    multiply = torch.ops.mkldnn._linear_pointwise
    # oneDNN takes thousands of times as long if a weight is a part of a larger matrix.
    weight = weight if weight.T.is_contiguous() else weight.contiguous()
    if addend is None or addend.dim() == 1:
        result: Tensor = multiply(x, weight, addend, "none", [], "")
    else:
        result = multiply.binary(x, addend, weight, None, "add")
    return result if out is None else out.copy_(result)


def add_weight_gradient(into: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add gradᵀ · x to the gradient of a weight. A sum in float16 would overflow.

    Args:
        into: (b, a) float32 gradient of the weight.
        grad: (t, b) gradient of the layer's result.
        x: (t, a) input of the layer.
    """
    for part in row_slices(grad, x):
        factors = grad[part].T, x[part]
        if grad.is_cuda and grad.dtype != into.dtype:
            into += torch.mm(*factors, out_dtype=into.dtype)
        else:
            transposed, inputs = (factor.to(into.dtype) for factor in factors)
            into += linear(transposed, inputs.T)


def channel_gate(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gelu(y) and the channel attention's gate before its sigmoid, without a gradient.

    Args:
        y: (s, c, h).
        w1: (a, h) weight that squeezes h channels to a; `b1` is its bias.
        b1: (a,).
        w2: (h, a) weight of the gate; `b2` is its bias.
        b2: (h,).

    Returns:
        (2, s, c, h), and the bottleneck channels, (s · c, a).
    """
    halves = y.new_empty(2, *y.shape)
    inner = torch.ops.aten.gelu.out(y, out=halves[0]).flatten(0, 1)
    bottleneck = linear(inner, w1, b1).relu_()
    linear(bottleneck, w2, b2, out=halves[1].flatten(0, 1))
    return halves, bottleneck


def add_projection(
    x: Tensor,
    parts: Iterable[Tensor],
    weight: Tensor,
    bias: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return x + W [parts] + b without a gradient.

    Args:
        x: (s, c, h).
        parts: One tensor (s, c, h) or two.
        weight: (h, h) or (h, 2h) matrix W.
        bias: (h,) vector b.
        out: (s, c, h) result; None makes a new tensor.
    """
    into = torch.add(x, bias, out=torch.empty_like(x) if out is None else out)
    for part, matrix in zip(parts, weight.split(len(weight), 1), strict=True):
        linear(part.flatten(0, 1), matrix, into.flatten(0, 1), out=into.flatten(0, 1))
    return into


def attend_and_add(
    x: Tensor, y: Tensor, sharpness: Tensor | None, weights: Sequence[Tensor], out: Tensor
) -> None:
    """Write x + P attend(gelu(y)) to `out`.

    Args:
        x: (s, c, h) input of the block.
        y: (s, c, h) aggregated neighbours.
        sharpness: (), 1 / temperature. None turns off attention across configs.
        weights: W1 and b1, W2 and b2 of the channel attention, P and its bias, in y's dtype.
        out: (s, c, h) result.
    """
    attention, _ = attend(channel_gate(y, *weights[:4])[0], sharpness)
    add_projection(x, attention, *weights[4:], out=out)


def attend_and_add_backward(
    grad: Tensor,
    y: Tensor,
    sharpness: Tensor | None,
    weights: Sequence[Tensor],
    of_y: Tensor,
    totals: list[Tensor],
) -> Tensor | None:
    """Write the gradient of y to `of_y`, and add the gradients of the weights to `totals`.

    Args:
        grad: (s, c, h) gradient of the result.
        y: (s, c, h) aggregated neighbours.
        sharpness, weights: Arguments of `attend_and_add`.
        of_y: (s, c, h) result.
        totals: Sums of the gradients of `weights` but P's bias. A fused kernel appends its sum.

    Returns:
        The gradient of the sharpness, (), or None.
    """
    w1, b1, w2, b2, project, _ = weights
    of_project = totals[4]
    halves, bottleneck = channel_gate(y, w1, b1, w2, b2)
    attention, pullback = attend(halves, sharpness)
    rows, of_attention = grad.flatten(0, 1), torch.empty_like(attention)
    transposable = _by_columns(rows)
    columns = zip(project.split(len(project), 1), of_project.split(len(project), 1), strict=True)
    for part, of_part, (matrix, of_matrix) in zip(attention, of_attention, columns, strict=True):
        add_weight_gradient(of_matrix, transposable, part.flatten(0, 1))
        linear(rows, matrix.T, out=of_part.flatten(0, 1))
    of_halves, slope = pullback(of_attention)
    gate_backward(of_halves, y, (halves[0], bottleneck), (w1, w2), of_y, totals)
    return slope


def gate_backward(
    of_halves: Iterable[Tensor],
    y: Tensor,
    results: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    of_y: Tensor,
    totals: Sequence[Tensor],
) -> None:
    """Map the gradients of the results of `channel_gate` to those of its arguments.

    Args:
        of_halves: Gradients of gelu(y), which is overwritten, and of the gate, (s, c, h) each.
        y: (s, c, h) aggregated neighbours.
        results: gelu(y), (s, c, h), and the bottleneck channels, (s · c, a).
        weights: W1, (a, h), and W2, (h, a).
        of_y: (s, c, h) gradient of y, which is written.
        totals: Sums of the gradients of W1, b1, W2 and b2. Further ones stay unchanged.
    """
    (of_inner, of_gate), (inner, bottleneck), (w1, w2) = of_halves, results, weights
    of_w1, of_b1, of_w2, of_b2, *_ = totals
    of_gate = of_gate.flatten(0, 1)
    add_weight_gradient(of_w2, of_gate, bottleneck)
    of_b2 += of_gate.sum(0, dtype=of_b2.dtype)
    of_bottleneck = torch.ops.aten.threshold_backward(linear(of_gate, w2.T), bottleneck, 0)
    add_weight_gradient(of_w1, of_bottleneck, inner.flatten(0, 1))
    of_b1 += of_bottleneck.sum(0, dtype=of_b1.dtype)
    linear(of_bottleneck, w1.T, of_inner.flatten(0, 1), out=of_inner.flatten(0, 1))
    torch.ops.aten.gelu_backward.grad_input(of_inner, y, grad_input=of_y)


def aggregate(
    x: Tensor, norm: Norm, weights: Tensor, addend: Tensor, aggregation: Aggregation
) -> Tensor:
    """Aggregate norm(x). `autograd_ops.Aggregate` explains the arguments and their shapes.

    The weights and the addend are in x's dtype.
    """
    means, keeps_own = aggregation.means, aggregation.keeps_own
    out = x.new_empty(means.matrix.shape[0], *x.shape[1:]).copy_(addend)
    projections = x.new_empty(len(weights) - keeps_own, *x.shape)
    for part in node_slices(x):
        h = _norm(x[part], norm)[0].flatten(0, 1)
        if keeps_own:
            into = out[part].flatten(0, 1)
            linear(h, weights[0], into, out=into)
        for weight, into in zip(weights[int(keeps_own) :], projections, strict=True):
            linear(h, weight, out=into[part].flatten(0, 1))
    means.add_to(out, projections.flatten(0, 1))
    return out


def aggregate_backward(
    grad: Tensor, x: Tensor, norm: Norm, weights: Tensor, aggregation: Aggregation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, gain, shift and weights by that of the result of `aggregate`."""
    means, keeps_own = aggregation.means, aggregation.keeps_own
    projections = means.transpose(grad).view(-1, *x.shape)
    dtype = torch.promote_types(weights.dtype, torch.float32)
    grad_x, grad_weights = torch.empty_like(x), torch.zeros_like(weights, dtype=dtype)
    sums = torch.zeros_like(norm.gain), torch.zeros_like(norm.shift)
    for part in node_slices(x):
        h, *residuals = _norm(x[part], norm)
        flat, grads = _by_columns(h.flatten(0, 1)), [*projections[:, part].flatten(1, 2)]
        if keeps_own:
            grads.insert(0, grad[part].flatten(0, 1))
        grad_h = linear(grads[0], weights[0].T)
        for of_output, weight in zip(grads[1:], weights[1:], strict=True):
            linear(of_output, weight.T, grad_h, out=grad_h)
        for of_output, into in zip(grads, grad_weights, strict=True):
            add_weight_gradient(into.T, flat, of_output)
        _norm_backward(grad_h.view_as(h), x[part], residuals, norm.gain, (grad_x[part], *sums))
    return grad_x, *sums, grad_weights


def _by_columns(rows: Tensor) -> Tensor:
    # Weight gradients on a CPU read the transposed matrix. One copy serves several of them.
    return rows.T.contiguous().T if rows.is_cpu else rows


def _norm(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    gain, shift = norm.gain.to(x.dtype), norm.shift.to(x.dtype)
    results: tuple[Tensor, Tensor, Tensor] = torch.native_layer_norm(
        x, x.shape[-1:], gain, shift, norm.eps
    )
    return results


def _norm_backward(
    grad: Tensor, x: Tensor, residuals: Sequence[Tensor], gain: Tensor, into: Sequence[Tensor]
) -> None:
    # Writes the gradient of x to `into`, and adds the gradients of gain and shift.
    cast_gain = gain.to(x.dtype)
    of_gain, of_shift = torch.empty_like(cast_gain), torch.empty_like(cast_gain)
    torch.ops.aten.native_layer_norm_backward.out(
        *(grad, x, [x.shape[-1]], *residuals, cast_gain, cast_gain, [True, True, True]),
        **{"out0": into[0], "out1": of_gain, "out2": of_shift},
    )
    into[1].add_(of_gain)
    into[2].add_(of_shift)


def pool(x: Tensor, norm: Norm, shares: Tensor, *, for_gradients: bool) -> tuple[Tensor, ...]:
    """Sum norm(x) over nodes by each of p shares, and find its largest value.

    Args:
        x: (n, c, h) nodes.
        norm: Layer norm of x.
        shares: (p, n) float32 weights of the nodes.
        for_gradients: Also return the tensors that `pool_backward` takes.

    Returns:
        (p, c, h) float32 sums and (c, h) float32 maxima. For gradients also the node of each
        maximum, (c, h) int64, and the mean and deviation of the norm.
    """
    sums = x.new_zeros(len(shares), *x.shape[1:], dtype=torch.float32)
    largest, residuals = x.new_full(x.shape[1:], -torch.inf, dtype=torch.float32), []
    place = torch.zeros_like(largest, dtype=torch.int64)
    for part in node_slices(x):
        values, *deviation = _norm(x[part], norm)
        values = values.float()
        sums.flatten(1).addmm_(shares[:, part], values.flatten(1))
        if for_gradients:
            highest, index = values.max(dim=0)
            place = torch.where(highest > largest, index + part.start, place)
            residuals.append(deviation)
        else:
            # On a CPU, amax is several times faster than max.
            highest = values.amax(dim=0)
        largest = torch.maximum(highest, largest)
    return sums, largest, place, *(torch.cat(of_parts) for of_parts in zip(*residuals, strict=True))


def pool_backward(
    grads: Sequence[Tensor], x: Tensor, gain: Tensor, shares: Tensor, residuals: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, gain and shift by those of the sums and of the maxima of `pool`.

    The residuals are the further results of `pool`.
    """
    (of_sums, of_largest), (place, *deviation) = grads, residuals
    grad_x, sums = torch.empty_like(x), (torch.zeros_like(gain), torch.zeros_like(gain))
    for part in node_slices(x):
        grad = (shares[:, part].T @ of_sums.flatten(1)).view(-1, *x.shape[1:])
        row = place - part.start
        of_row = of_largest * ((row >= 0) & (row < len(grad)))
        grad.scatter_add_(0, row.clamp(0, len(grad) - 1)[None], of_row[None])
        of_norm = [tensor[part] for tensor in deviation]
        _norm_backward(grad.to(x.dtype), x[part], of_norm, gain, (grad_x[part], *sums))
    return grad_x, *sums
