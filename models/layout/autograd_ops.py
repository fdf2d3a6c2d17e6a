"""The autograd functions of the layout GNN: they store narrow tensors, and recompute wide ones.

The argument `ops` is a module, plain_ops or fused_ops of models/layout.

Shapes: n nodes, r rows of an aggregation, c configs, h channels.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from models.layout.inputs import Aggregation
from models.layout.plain_ops import Norm, node_slices


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
        addend: Tensor,
        aggregation: Aggregation,
        ops: ModuleType,
    ) -> Tensor:
        ctx.eps, ctx.aggregation, ctx.ops = eps, aggregation, ops
        ctx.addend = addend.shape, torch.promote_types(addend.dtype, torch.float32)
        ctx.save_for_backward(x, gain, shift, weights)
        cast_weights, addend = weights.to(x.dtype), addend.to(x.dtype)
        norm = Norm(gain, shift, eps)
        result: Tensor = ops.aggregate(x, norm, cast_weights, addend, aggregation)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, weights = ctx.saved_tensors
        grad, cast_weights = grad.contiguous(), weights.to(x.dtype)
        norm = Norm(gain, shift, ctx.eps)
        *of_x_and_norm, of_weights = ctx.ops.aggregate_backward(
            grad, x, norm, cast_weights, ctx.aggregation
        )
        shape, dtype = ctx.addend
        axes = (0, 1) if len(shape) == 1 else (1,)
        grad_addend = grad.sum(axes, keepdim=len(shape) > 1, dtype=dtype)
        return *of_x_and_norm, None, of_weights, grad_addend, None, None


class AttendAndAdd(torch.autograd.Function):
    """x + P attend(gelu(y)), slice by slice of nodes. Only y is stored for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, ops: ModuleType, sharpness: Tensor | None, *weights: Tensor
    ) -> Tensor:
        ctx.ops = ops
        ctx.save_for_backward(y, sharpness, *weights)
        cast_weights = [tensor.to(y.dtype) for tensor in weights]
        out = torch.empty_like(x)
        for part in node_slices(y):
            ops.attend_and_add(x[part], y[part], sharpness, cast_weights, out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, sharpness, *weights = ctx.saved_tensors
        cast_weights = [tensor.to(y.dtype) for tensor in weights]
        totals = [torch.zeros_like(tensor) for tensor in weights[:-1]]
        of_sharpness = None if sharpness is None else torch.zeros_like(sharpness)
        of_y, grad = torch.empty_like(y), grad.contiguous()
        for part in node_slices(y):
            slope = ctx.ops.attend_and_add_backward(
                grad[part], y[part], sharpness, cast_weights, of_y[part], totals
            )
            if of_sharpness is not None:
                of_sharpness += slope
        if len(totals) == 5:
            totals.append(grad.sum((0, 1), dtype=weights[-1].dtype))
        of_bias = torch.stack(totals[5:]).sum(0)
        return grad, of_y, None, of_sharpness, *totals[:5], of_bias


class Broadcast(torch.autograd.Function):
    """Expand shared values (n, 1, h) to (n, c, h), and replace the nodes `ids`."""

    @staticmethod
    def forward(ctx: Any, common: Tensor, ids: Tensor, varying: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        out = varying.new_empty(len(common), *varying.shape[1:])
        return out.copy_(common).index_copy_(0, ids, varying)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        of_common = grad.contiguous().sum(1, keepdim=True, dtype=torch.float32)
        return of_common.index_fill_(0, ids, 0), None, grad[ids]


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
        sums, largest, *residuals = ops.pool(x, Norm(gain, shift, eps), shares, for_gradients=True)
        ctx.save_for_backward(x, gain, shares, *residuals)
        return sums, largest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shares, *residuals = ctx.saved_tensors
        return *ctx.ops.pool_backward(grads, x, gain, shares, residuals), None, None, None
