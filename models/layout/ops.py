"""A block's operations with gradients of their own, by plain torch or a GPU's fused kernels.

What follows an aggregation is computed again for the gradients instead of being kept.
"""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from models.layout import fused_ops, plain_ops
from models.layout.inputs import Aggregation
from models.layout.plain_ops import Norm, node_slices


def ops_for(x: Tensor, *, fused: bool) -> ModuleType:
    """Return `fused_ops` for what is on a GPU, if torch's build brings Triton; else `plain_ops`."""
    if not (fused and x.is_cuda) or (torch.cuda.is_available() and not find_spec("triton")):
        return plain_ops
    return fused_ops


class Aggregate(torch.autograd.Function):
    """What rows take of norm(x), each part by its own weights, plus what is added.

    Maps x (m, c, h) to (r, c, h) by an aggregation of m nodes by r rows, with weights (3, h, h) of
    the own part, the operands' and the users', and added (h,), or (r, 1, h) where rows differ. Only
    x is kept for the gradients, which take the norm again.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
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
        axes = (0, 1) if len(shape) == 1 else (1,)
        grad_added = grad.sum(axes, keepdim=len(shape) > 1, dtype=dtype)
        return *of_x_and_norm, None, of_weights, grad_added, None, None


class AttendAndAdd(torch.autograd.Function):
    """x + P attend(gelu(y)) for slices of nodes in turn; y alone is kept for the gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, ops: ModuleType, sharpness: Tensor | None, *weights: Tensor
    ) -> Tensor:
        ctx.ops = ops
        ctx.save_for_backward(y, sharpness, *weights)
        rounded = [tensor.to(y.dtype) for tensor in weights]
        out = torch.empty_like(x)
        for part in node_slices(y):
            joined, _ = ops.attend(gated(y[part], *rounded[:4])[0], sharpness)
            added(x[part], (joined,), *rounded[4:], out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, sharpness, *weights = ctx.saved_tensors
        ops, (w1, b1, w2, b2, project, _) = ctx.ops, [t.to(y.dtype) for t in weights]
        of_w1, of_b1, of_w2, of_b2, of_project, _ = totals = [
            torch.zeros_like(tensor) for tensor in weights
        ]
        of_sharpness = None if sharpness is None else torch.zeros_like(sharpness)
        grad_y, grad = torch.empty_like(y), grad.contiguous()
        for part in node_slices(y):
            inner_and_gate, squeezed = gated(y[part], w1, b1, w2, b2)
            joined, pullback = ops.attend(inner_and_gate, sharpness)
            rows = grad[part].flatten(0, 1)
            ops.add_weight_gradient(of_project, rows, joined.flatten(0, 1))
            of_joined = (rows @ project).view_as(joined)
            of_gated, slope = pullback(of_joined)
            if of_sharpness is not None:
                of_sharpness += slope
            of_inner, of_gate = of_gated.flatten(0, 1).chunk(2, dim=-1)
            ops.add_weight_gradient(of_w2, of_gate, squeezed)
            of_b2 += of_gate.sum(0, dtype=of_b2.dtype)
            of_squeezed = torch.ops.aten.threshold_backward(of_gate @ w2, squeezed, 0)
            ops.add_weight_gradient(
                of_w1, of_squeezed, inner_and_gate.flatten(0, 1).chunk(2, -1)[0]
            )
            of_b1 += of_squeezed.sum(0, dtype=of_b1.dtype)
            of_inner = of_inner.addmm_(of_squeezed, w1).view_as(y[part])
            torch.ops.aten.gelu_backward.grad_input(of_inner, y[part], grad_input=grad_y[part])
        totals[-1] = grad.sum((0, 1), dtype=weights[-1].dtype)
        return grad, grad_y, None, of_sharpness, *totals


def gated(y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    """Return gelu(y) beside the gate before its sigmoid, and what W1 squeezes the first to.

    (s, c, h) to (s, c, 2h) and (s · c, a), without a gradient.
    """
    both = y.new_empty(*y.shape[:2], 2 * y.shape[2])
    inner, gate = both.split(y.shape[2], dim=-1)
    if y.device.type == "cpu":  # where torch writes this one past a strided `out`
        inner.copy_(nn.functional.gelu(y))
    else:
        torch.ops.aten.gelu.out(y, out=inner)
    return both, gate_logits(inner, w1, b1, w2, b2, out=gate)[1]


def gate_logits(
    inner: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the channel attention's gate before its sigmoid, (s, c, h), and W1's part of it."""
    squeezed = torch.addmm(b1, inner.flatten(0, 1), w1.T).relu_()
    gate = torch.empty_like(inner) if out is None else out
    torch.addmm(b2, squeezed, w2.T, out=gate.flatten(0, 1))
    return gate, squeezed


def added(
    x: Tensor, parts: tuple[Tensor, ...], weight: Tensor, bias: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Return x + W [parts] + b for (s, c, h) tensors; without a gradient."""
    into = torch.empty_like(x) if out is None else out
    rows, given = into.flatten(0, 1), bias
    for z, of_z in zip(parts, weight.split(parts[0].shape[-1], 1), strict=True):
        torch.addmm(given, z.flatten(0, 1), of_z.T, out=rows)
        given = rows
    return into.add_(x)


class Spread(torch.autograd.Function):
    """What all configs share, (n, 1, h), as (n, c, h), but for the nodes `ids` that vary."""

    @staticmethod
    def forward(ctx: Any, shared: Tensor, ids: Tensor, varying: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        out = varying.new_empty(len(shared), *varying.shape[1:])
        return out.copy_(shared).index_copy_(0, ids, varying)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        of_shared = grad.sum(dim=1, keepdim=True, dtype=torch.float32)
        return of_shared.index_fill_(0, ids, 0), None, grad[ids]


class Pool(torch.autograd.Function):
    """What plain_ops.pool gives; only x is kept for the gradients."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
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
