"""A block's work on nodes, forward and backward, in plain torch: any device, any dtype.

A slice of nodes fits a CPU's cache. models/layout/fused_ops.py has the same functions for GPUs.
The autograd functions at the end call the functions of either module, their argument `ops`.

Shapes: s nodes of a slice, n nodes, r rows of an aggregation, c configs, h channels.
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.layout.inputs import Aggregation
from models.layout.products import add_weight_gradient

SLICE_BYTES = 2 << 20
# A GPU has no such cache and each slice costs launches, so this value only limits memory.
DEVICE_SLICE_BYTES = 256 << 20

Pullback = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Norm(NamedTuple):
    """A layer norm over channels, with float32 gain and shift, (h,) each."""

    gain: Tensor
    shift: Tensor
    eps: float


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of a tensor into slices of about SLICE_BYTES, or DEVICE_SLICE_BYTES on a GPU.

    Args:
        x: (n, c, h) tensor.
    """
    slice_bytes = SLICE_BYTES if x.device.type == "cpu" else DEVICE_SLICE_BYTES
    step = max(1, slice_bytes // max(1, x[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(x), step)]


def attend(both: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Pullback]:
    """Gate an aggregation, and weigh it by the other configs.

    The messages are u = inner · sigmoid(gate). The weights are w = c · softmax over configs of u ·
    sharpness. The result is [u, u · w], or [u] if `sharpness` is None.

    Args:
        both: (2, s, c, h), inner and gate.
        sharpness: (), 1 / temperature.

    Returns:
        (2, s, c, h) or (1, s, c, h), and a function from its gradient to the gradients of `both`
        and `sharpness`. The function may overwrite the gradient.
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
        else:
            # The sum of all products overflows half precision.
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
        sharpness: (), 1 / temperature. None turns off attention across configs.
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
    """Write the gradient of y to `of_y`, and add the gradients of the weights to `totals`.

    Args:
        grad: (s, c, h) gradient of the result.
        y: (s, c, h) aggregated neighbours.
        sharpness: The argument of `attend_and_add`.
        weights: The argument of `attend_and_add`.
        of_y: (s, c, h) result.
        totals: Sums of the gradients of `weights`. The last one stays unchanged.

    Returns:
        The gradient of the sharpness, (), or None.
    """
    w1, b1, w2, b2, project, _ = weights
    of_project = totals[4]
    both, squeezed = gated(y, w1, b1, w2, b2)
    joined, pullback = attend(both, sharpness)
    rows, of_joined = grad.flatten(0, 1), torch.empty_like(joined)
    columns = zip(project.split(len(project), 1), of_project.split(len(project), 1), strict=True)
    for part, of_part, (matrix, of_matrix) in zip(joined, of_joined, columns, strict=True):
        add_weight_gradient(of_matrix, rows, part.flatten(0, 1))
        torch.mm(rows, matrix, out=of_part.flatten(0, 1))
    of_both, slope = pullback(of_joined)
    gate_backward(of_both, y, (both[0], squeezed), (w1, w2), of_y, totals)
    return slope


def gate_backward(
    of_both: Iterable[Tensor],
    y: Tensor,
    results: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    of_y: Tensor,
    totals: Sequence[Tensor],
) -> None:
    """Map the gradients of the results of `gated` to those of its arguments.

    Args:
        of_both: Gradients of gelu(y), which is overwritten, and of the gate, (s, c, h) each.
        y: (s, c, h) aggregated neighbours.
        results: gelu(y), (s, c, h), and the squeezed channels, (s · c, a).
        weights: W1, (a, h), and W2, (h, a).
        of_y: (s, c, h) gradient of y, which is written.
        totals: Sums of the gradients of W1, b1, W2 and b2. Further ones stay unchanged.
    """
    (of_inner, of_gate), (inner, squeezed), (w1, w2) = of_both, results, weights
    of_w1, of_b1, of_w2, of_b2, *_ = totals
    of_gate = of_gate.flatten(0, 1)
    add_weight_gradient(of_w2, of_gate, squeezed)
    of_b2 += of_gate.sum(0, dtype=of_b2.dtype)
    of_squeezed = torch.ops.aten.threshold_backward(of_gate @ w2, squeezed, 0)
    add_weight_gradient(of_w1, of_squeezed, inner.flatten(0, 1))
    of_b1 += of_squeezed.sum(0, dtype=of_b1.dtype)
    of_inner.flatten(0, 1).addmm_(of_squeezed, w1)
    torch.ops.aten.gelu_backward.grad_input(of_inner, y, grad_input=of_y)


def sum_rows(x: Tensor, dtype: torch.dtype, *, per_node: bool) -> Tensor:
    """Sum over configs, and over nodes unless `per_node`.

    Args:
        x: (n, c, h) tensor.
        dtype: Type of the result.
        per_node: Keep the axis of nodes.

    Returns:
        (n, 1, h) if `per_node`, else (h,).
    """
    return x.sum(1 if per_node else (0, 1), keepdim=per_node, dtype=dtype)


def weigh(messages: Tensor, sharpness: Tensor, normaliser: Tensor) -> Tensor:
    """Return u · exp(u · sharpness - normaliser).

    Args:
        messages: (s, c, h) messages u.
        sharpness: (), 1 / temperature.
        normaliser: (s, 1, h) normaliser of all configs.

    Returns:
        (s, c, h).
    """
    logits = messages.float() * sharpness
    return logits.sub_(normaliser).exp_().mul_(messages).to(messages.dtype)


def log_sum_exp(messages: Tensor, sharpness: Tensor) -> Tensor:
    """Return the log of the sum over configs of exp(u · sharpness).

    Args:
        messages: (s, c, h) messages u.
        sharpness: (), 1 / temperature.

    Returns:
        (s, 1, h) float32.
    """
    logits = messages.float() * sharpness
    highest = logits.amax(dim=1, keepdim=True)
    return logits.sub_(highest).exp_().sum(dim=1, keepdim=True).log_().add_(highest)


def aggregate(
    x: Tensor, norm: Norm, weights: Tensor, added: Tensor, aggregation: Aggregation
) -> Tensor:
    """Aggregate norm(x). `Aggregate` explains the arguments.

    Args:
        x: (m, c, h) nodes.
        norm: Layer norm of x.
        weights: (3, h, h) matrices, in x's dtype.
        added: (h,) or (r, 1, h) tensor to add.
        aggregation: Aggregation of m nodes to r rows.

    Returns:
        (r, c, h).
    """
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
    """Return the gradients of x, gain, shift and weights.

    Args:
        grad: (r, c, h) gradient of the result of `aggregate`.
        x: (m, c, h) nodes.
        norm: Layer norm of x.
        weights: (3, h, h) matrices, in x's dtype.
        aggregation: Aggregation of m nodes to r rows.
    """
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
    # Writes the gradient of x to `into`, and adds the gradients of gain and shift.
    rounded = gain.to(x.dtype)
    of_gain, of_shift = torch.empty_like(rounded), torch.empty_like(rounded)
    torch.ops.aten.native_layer_norm_backward.out(
        *(grad, x, [x.shape[-1]], *kept, rounded, rounded, [True, True, True]),
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
        else:
            # On a CPU, amax is several times faster than max.
            highest = normed.amax(dim=0)
        largest = torch.maximum(highest, largest)
    return sums, largest, place, *(torch.cat(of_parts) for of_parts in zip(*kept, strict=True))


def pool_backward(
    grads: Sequence[Tensor], x: Tensor, gain: Tensor, shares: Tensor, kept: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, gain and shift.

    Args:
        grads: Gradients of the sums and of the maxima of `pool`.
        x: (n, c, h) nodes.
        gain: (h,) gain of the norm.
        shares: (p, n) float32 weights of the nodes.
        kept: Further results of `pool`.
    """
    (of_sums, of_largest), (place, *deviation) = grads, kept
    grad_x, sums = torch.empty_like(x), (torch.zeros_like(gain), torch.zeros_like(gain))
    for part in node_slices(x):
        grad = (shares[:, part].T @ of_sums.flatten(1)).view(-1, *x.shape[1:])
        row = place - part.start
        of_row = of_largest * ((row >= 0) & (row < len(grad)))
        grad.scatter_add_(0, row.clamp(0, len(grad) - 1)[None], of_row[None])
        of_norm = [tensor[part] for tensor in deviation]
        _norm_backward(grad.to(x.dtype), x[part], of_norm, gain, (grad_x[part], *sums))
    return grad_x, *sums


class Aggregate(torch.autograd.Function):
    """Aggregate norm(x) by one weight matrix per part, and add a tensor.

    The function maps x (m, c, h) to (r, c, h) by an aggregation of m nodes to r rows. The weights
    are (3, h, h), for the own part, the operands and the users. The added tensor is (h,), or (r, 1,
    h) if rows differ. Only x is stored for the backward pass, which recomputes the norm.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        eps: float,
        weights: Tensor,
        added: Tensor,
        aggregation: Aggregation,
        ops: ModuleType,
    ) -> Tensor:
        ctx.eps, ctx.aggregation, ctx.ops = eps, aggregation, ops
        ctx.added = added.shape, torch.promote_types(added.dtype, torch.float32)
        ctx.save_for_backward(x, gain, shift, weights)
        rounded, added = weights.to(x.dtype), added.to(x.dtype)
        norm = Norm(gain, shift, eps)
        result: Tensor = ops.aggregate(x, norm, rounded, added, aggregation)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, weights = ctx.saved_tensors
        grad, rounded = grad.contiguous(), weights.to(x.dtype)
        norm = Norm(gain, shift, ctx.eps)
        *of_x_and_norm, of_weights = ctx.ops.aggregate_backward(
            grad, x, norm, rounded, ctx.aggregation
        )
        shape, dtype = ctx.added
        grad_added = ctx.ops.sum_rows(grad, dtype, per_node=len(shape) > 1)
        return *of_x_and_norm, None, of_weights, grad_added, None, None


class AttendAndAdd(torch.autograd.Function):
    """x + P attend(gelu(y)), slice by slice of nodes. Only y is stored for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, ops: ModuleType, sharpness: Tensor | None, *weights: Tensor
    ) -> Tensor:
        ctx.ops = ops
        ctx.save_for_backward(y, sharpness, *weights)
        rounded = [tensor.to(y.dtype) for tensor in weights]
        out = torch.empty_like(x)
        for part in node_slices(y):
            ops.attend_and_add(x[part], y[part], sharpness, rounded, out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, sharpness, *weights = ctx.saved_tensors
        rounded = [tensor.to(y.dtype) for tensor in weights]
        totals = [torch.zeros_like(tensor) for tensor in weights]
        of_sharpness = None if sharpness is None else torch.zeros_like(sharpness)
        of_y, grad = torch.empty_like(y), grad.contiguous()
        for part in node_slices(y):
            slope = ctx.ops.attend_and_add_backward(
                grad[part], y[part], sharpness, rounded, of_y[part], totals
            )
            if of_sharpness is not None:
                of_sharpness += slope
        totals[-1] = ctx.ops.sum_rows(grad, weights[-1].dtype, per_node=False)
        return grad, of_y, None, of_sharpness, *totals


class Broadcast(torch.autograd.Function):
    """Expand shared values (n, 1, h) to (n, c, h), and replace the nodes `ids`."""

    @staticmethod
    def forward(ctx: Any, shared: Tensor, ids: Tensor, varying: Tensor, ops: ModuleType) -> Tensor:
        ctx.ops = ops
        ctx.save_for_backward(ids)
        out = varying.new_empty(len(shared), *varying.shape[1:])
        return out.copy_(shared).index_copy_(0, ids, varying)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        of_shared = ctx.ops.sum_rows(grad.contiguous(), torch.float32, per_node=True)
        return of_shared.index_fill_(0, ids, 0), None, grad[ids], None


class Pool(torch.autograd.Function):
    """`plain_ops.pool` with a backward pass that stores only x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        eps: float,
        shares: Tensor,
        ops: ModuleType,
    ) -> tuple[Tensor, Tensor]:
        ctx.ops = ops
        sums, largest, *kept = ops.pool(x, Norm(gain, shift, eps), shares, for_gradients=True)
        ctx.save_for_backward(x, gain, shares, *kept)
        return sums, largest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shares, *kept = ctx.saved_tensors
        return *ctx.ops.pool_backward(grads, x, gain, shares, kept), None, None, None
