"""A block's work on nodes, forward and backward, in plain torch: any device, any dtype.

It is computed for a slice of nodes at a time, so that a CPU finds it in its cache.
models/layout/fused_ops.py has the same functions for GPUs.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.layout.inputs import Aggregation

SLICE_BYTES = 2 << 20
# A GPU has no such cache, and each slice costs it launches: only memory is kept in bounds.
DEVICE_SLICE_BYTES = 256 << 20

Pullback = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Norm(NamedTuple):
    """A layer norm over channels, by its gain and shift, (h,) float32 each."""

    gain: Tensor
    shift: Tensor
    eps: float


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of (n, c, h) so that a slice's tensor takes about SLICE_BYTES."""
    slice_bytes = SLICE_BYTES if x.device.type == "cpu" else DEVICE_SLICE_BYTES
    step = max(1, slice_bytes // max(1, x[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(x), step)]


def attend(both: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Pullback]:
    """Gate what a block has aggregated, and weigh it by the other configs.

    With messages u = inner · sigmoid(gate) and weights w = c · softmax over configs of u ·
    sharpness, the result is u and u · w; only u if sharpness is None.

    Args:
        both: (2, s, c, h), inner and gate.
        sharpness: (), 1 / temperature.

    Returns:
        (2, s, c, h) or (1, s, c, h), and the function from its gradient, which it may overwrite, to
        the gradients of `both` and sharpness.
    """
    if sharpness is None:
        return F.glu(both, 0), lambda grad: (torch.ops.aten.glu_backward(grad, both, 0), None)
    joined, n_configs = torch.empty_like(both), both.shape[2]
    messages, weighed = torch.ops.aten.glu.out(both, 0, out=joined[:1])[0], joined[1]
    logits = messages * sharpness.to(messages.dtype)
    weights = torch.softmax(logits, dim=1)
    none = torch.zeros((), dtype=both.dtype, device=both.device)
    torch.addcmul(none, messages, weights, value=n_configs, out=weighed)

    def pullback(grad: Tensor) -> tuple[Tensor, Tensor]:
        of_messages, of_weighed = grad
        of_weights = torch.addcmul(none, of_weighed, messages, value=n_configs)
        of_logits = torch.ops.aten._softmax_backward_data(of_weights, weights, 1, weights.dtype)
        of_messages.addcmul_(of_weighed, weights, value=n_configs)
        of_messages.addcmul_(of_logits, sharpness.to(grad.dtype))
        if logits.dtype == torch.float32:
            slope = torch.dot(of_logits.view(-1), logits.view(-1))
        else:  # a sum of this many products does not fit half precision
            slope = (of_logits * logits).sum(dtype=torch.float32)
        return torch.ops.aten.glu_backward(grad[:1], both, 0), slope / sharpness

    return joined, pullback


def gated(y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """Return gelu(y) and the channel attention's gate before its sigmoid, without a gradient.

    Args:
        y: (s, c, h).
        w1: (a, h) weight that squeezes h channels to a; `b1` is its bias.
        b1: (a,).
        w2: (h, a) weight of the gate; `b2` is its bias.
        b2: (h,).

    Returns:
        (2, s, c, h), and the squeezed channels, (s · c, a).
    """
    both = y.new_empty(2, *y.shape)
    inner = torch.ops.aten.gelu.out(y, out=both[0]).flatten(0, 1)
    squeezed = torch.addmm(b1, inner, w1.T).relu_()
    torch.addmm(b2, squeezed, w2.T, out=both[1].flatten(0, 1))
    return both, squeezed


def added(
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
        into.flatten(0, 1).addmm_(part.flatten(0, 1), matrix.T)
    return into


def attend_and_add(
    x: Tensor, y: Tensor, sharpness: Tensor | None, weights: Sequence[Tensor], out: Tensor
) -> None:
    """Write x + P attend(gelu(y)) to `out`.

    Args:
        x: (s, c, h) input of the block.
        y: (s, c, h) aggregated neighbours.
        sharpness: (), 1 / temperature; None if configs do not see each other.
        weights: W1 and b1, W2 and b2 of the channel attention, P and its bias, in y's dtype.
        out: (s, c, h) result.
    """
    joined, _ = attend(gated(y, *weights[:4])[0], sharpness)
    added(x, joined, *weights[4:], out=out)


def attend_and_add_backward(
    grad: Tensor,
    y: Tensor,
    sharpness: Tensor | None,
    weights: Sequence[Tensor],
    of_y: Tensor,
    totals: Sequence[Tensor],
) -> Tensor | None:
    """Write the gradient of y to `of_y`, and add those of the weights to `totals`.

    Args:
        grad: (s, c, h) gradient of the result.
        y: As of `attend_and_add`; so are `sharpness` and `weights`.
        of_y: (s, c, h) result.
        totals: Sums of the gradients of `weights`; the last one is left as it is.

    Returns:
        The gradient of the sharpness, (), or None.
    """
    w1, b1, w2, b2, project, _ = weights
    of_w1, of_b1, of_w2, of_b2, of_project, _ = totals
    both, squeezed = gated(y, w1, b1, w2, b2)
    joined, pullback = attend(both, sharpness)
    rows, of_joined = grad.flatten(0, 1), torch.empty_like(joined)
    columns = zip(project.split(len(project), 1), of_project.split(len(project), 1), strict=True)
    for part, of_part, (matrix, of_matrix) in zip(joined, of_joined, columns, strict=True):
        add_weight_gradient(of_matrix, rows, part.flatten(0, 1))
        torch.mm(rows, matrix, out=of_part.flatten(0, 1))
    (of_inner, of_gate), slope = pullback(of_joined)
    of_gate = of_gate.flatten(0, 1)
    add_weight_gradient(of_w2, of_gate, squeezed)
    of_b2 += of_gate.sum(0, dtype=of_b2.dtype)
    of_squeezed = torch.ops.aten.threshold_backward(of_gate @ w2, squeezed, 0)
    add_weight_gradient(of_w1, of_squeezed, both[0].flatten(0, 1))
    of_b1 += of_squeezed.sum(0, dtype=of_b1.dtype)
    of_inner.flatten(0, 1).addmm_(of_squeezed, w1)
    torch.ops.aten.gelu_backward.grad_input(of_inner, y, grad_input=of_y)
    return slope


def sum_rows(x: Tensor, dtype: torch.dtype, *, per_node: bool) -> Tensor:
    """Sum (n, c, h) over configs to (n, 1, h), or over nodes as well to (h,), in `dtype`."""
    return x.sum(1 if per_node else (0, 1), keepdim=per_node, dtype=dtype)


def weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    """Return u · exp(u · sharpness - normaliser) of messages u, (s, c, h)."""
    logits = messages.float() * sharpness
    return logits.sub_(normaliser).exp_().mul_(messages).to(messages.dtype)


def log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    """Return log sum over configs of exp(u · sharpness) of messages u (s, c, h); (s, 1, h)."""
    logits = messages.float() * sharpness
    highest = logits.amax(dim=1, keepdim=True)
    return logits.sub_(highest).exp_().sum(dim=1, keepdim=True).log_().add_(highest)


def aggregate(
    x: Tensor, norm: Norm, weights: Tensor, added: Tensor, aggregation: Aggregation
) -> Tensor:
    """Return what rows take of norm(x): see `Aggregate` of models/layout/cross_config_sage.py."""
    means, keeps_own = aggregation.means, aggregation.keeps_own
    out = x.new_empty(means.matrix.shape[0], *x.shape[1:]).copy_(added)
    projected = x.new_empty(len(weights) - keeps_own, *x.shape)
    for part in node_slices(x):
        h = _norm(x[part], norm)[0].flatten(0, 1)
        if keeps_own:
            out[part].flatten(0, 1).addmm_(h, weights[0].T)
        for weight, into in zip(weights[int(keeps_own) :], projected, strict=True):
            torch.mm(h, weight.T, out=into[part].flatten(0, 1))
    means.add_to(out, projected.flatten(0, 1))
    return out


def aggregate_backward(
    grad: Tensor, x: Tensor, norm: Norm, weights: Tensor, aggregation: Aggregation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, gain, shift and weights, from that of what `aggregate` gives."""
    means, keeps_own = aggregation.means, aggregation.keeps_own
    projected = means.transpose(grad).view(-1, *x.shape)
    dtype = torch.promote_types(weights.dtype, torch.float32)
    grad_x, grad_weights = torch.empty_like(x), torch.zeros_like(weights, dtype=dtype)
    sums = torch.zeros_like(norm.gain), torch.zeros_like(norm.shift)
    for part in node_slices(x):
        h, *kept = _norm(x[part], norm)
        flat, grads = h.flatten(0, 1), [*projected[:, part].flatten(1, 2)]
        if keeps_own:
            grads.insert(0, grad[part].flatten(0, 1))
        grad_h = grads[0] @ weights[0]
        for of_output, weight in zip(grads[1:], weights[1:], strict=True):
            grad_h.addmm_(of_output, weight)
        for of_output, into in zip(grads, grad_weights, strict=True):
            add_weight_gradient(into, of_output, flat)
        _norm_backward(grad_h.view_as(h), x[part], kept, norm.gain, (grad_x[part], *sums))
    return grad_x, *sums, grad_weights


def _norm(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    gain, shift = norm.gain.to(x.dtype), norm.shift.to(x.dtype)
    normed: tuple[Tensor, Tensor, Tensor] = torch.native_layer_norm(
        x, x.shape[-1:], gain, shift, norm.eps
    )
    return normed


def _norm_backward(
    grad: Tensor, x: Tensor, kept: Sequence[Tensor], gain: Tensor, into: Sequence[Tensor]
) -> None:
    """Write the gradient of x, and add those of gain and shift, `into` three tensors."""
    rounded = gain.to(x.dtype)
    of_gain, of_shift = torch.empty_like(rounded), torch.empty_like(rounded)
    torch.ops.aten.native_layer_norm_backward.out(
        *(grad, x, [x.shape[-1]], *kept, rounded, rounded, [True, True, True]),
        **{"out0": into[0], "out1": of_gain, "out2": of_shift},
    )
    into[1].add_(of_gain)
    into[2].add_(of_shift)


def add_weight_gradient(into: Tensor, grad: Tensor, given: Tensor) -> None:
    """Add gradᵀ · given, (b, a) of (t, b) and (t, a), to `into`, float32."""
    if given.dtype == into.dtype:
        into.addmm_(grad.T, given)
    else:
        into += grad.T @ given


def pool(x: Tensor, norm: Norm, shares: Tensor, *, for_gradients: bool) -> tuple[Tensor, ...]:
    """Sum norm(x) over nodes by each of p shares, and find its largest.

    Args:
        x: (n, c, h).
        shares: (p, n) float32.

    Returns:
        (p, c, h) float32 and (c, h) float32; and what `pool_backward` takes, if it is wanted: which
        node is the largest, (c, h) int64, and the mean and deviation that the norm found.
    """
    sums = x.new_zeros(len(shares), *x.shape[1:], dtype=torch.float32)
    largest, kept = x.new_full(x.shape[1:], -torch.inf, dtype=torch.float32), []
    place = torch.zeros_like(largest, dtype=torch.int64)
    for part in node_slices(x):
        normed, *deviation = _norm(x[part], norm)
        normed = normed.float()
        sums.flatten(1).addmm_(shares[:, part], normed.flatten(1))
        if for_gradients:
            highest, index = normed.max(dim=0)
            place = torch.where(highest > largest, index + part.start, place)
            kept.append(deviation)
        else:  # several times as fast on a CPU
            highest = normed.amax(dim=0)
        largest = torch.maximum(highest, largest)
    return sums, largest, place, *(torch.cat(of_parts) for of_parts in zip(*kept, strict=True))


def pool_backward(
    grads: Sequence[Tensor], x: Tensor, gain: Tensor, shares: Tensor, kept: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, gain and shift, from those of the sums and of the largest."""
    (of_sums, of_largest), (place, *deviation) = grads, kept
    grad_x, sums = torch.empty_like(x), (torch.zeros_like(gain), torch.zeros_like(gain))
    for part in node_slices(x):
        grad = (shares[:, part].T @ of_sums.flatten(1)).view(-1, *x.shape[1:])
        here = place - part.start
        of_here = of_largest * ((here >= 0) & (here < len(grad)))
        grad.scatter_add_(0, here.clamp(0, len(grad) - 1)[None], of_here[None])
        found = [tensor[part] for tensor in deviation]
        _norm_backward(grad.to(x.dtype), x[part], found, gain, (grad_x[part], *sums))
    return grad_x, *sums
