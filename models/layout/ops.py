"""Who does a block's work on nodes, plain torch or a GPU's fused kernels; and aggregation by it."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from models.layout import fused_ops, plain_ops
from models.layout.plain_ops import Norm
from models.layout.sparse_aggregation import Aggregation


def ops_for(x: Tensor, *, fused: bool) -> ModuleType:
    """Return who does a block's work on nodes: `plain_ops`, or `fused_ops` for what is on a GPU.

    Triton comes with torch's builds for GPUs, but not on every system.
    """
    if not (fused and x.is_cuda) or (torch.cuda.is_available() and not find_spec("triton")):
        return plain_ops
    return fused_ops


def aggregate(
    aggregation: Aggregation,
    x: Tensor,
    norm: nn.LayerNorm,
    weights: Tensor,
    added: Tensor,
    *,
    fused: bool = True,
) -> Tensor:
    """Return what rows take of norm(x), each part by its own weights, plus what is added.

    Args:
        aggregation: of m nodes by r rows.
        x: (m, c, h).
        norm: over channels.
        weights: (3, h, h) of the own part, the operands' and the users'.
        added: (h,), or (r, 1, h) where rows differ.
        fused: by fused kernels, on a GPU.

    Returns:
        (r, c, h) as x.
    """
    given = x, norm.weight, norm.bias, norm.eps, weights, added
    result: Tensor = _NormProjectAggregate.apply(*given, aggregation, ops_for(x, fused=fused))
    return result


class _NormProjectAggregate(torch.autograd.Function):
    """`aggregate`: keeps x alone for the gradients, and takes the norm again for them."""

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
