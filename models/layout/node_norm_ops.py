"""Aggregation with a norm over nodes, in plain torch on any device.

Each channel of a config gets mean 0 and variance 1 over the nodes of the graph (instance norm), as
in the competition's winning solution. A config is normalised without the others, so ranking in
chunks stays exact.

Shapes: n nodes, c configs, h channels.
"""

from typing import Any

import torch
from torch import Tensor

from models.layout.inputs import Aggregation
from models.layout.plain_ops import add_weight_gradient, node_slices


def node_normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Normalise each channel of a config over the nodes, with float32 sums.

    Args:
        x: (n, c, h) nodes.
        eps: Added to the variance.

    Returns:
        (n, c, h) in the type of x, and the inverse of the deviation, (c, h) float32.
    """
    mean = x.mean(dim=0, dtype=torch.float32)
    squares = torch.zeros_like(mean)
    for part in node_slices(x):
        squares += (x[part].float() - mean).square_().sum(dim=0)
    scale, unit = torch.rsqrt(squares / len(x) + eps), torch.empty_like(x)
    for part in node_slices(x):
        unit[part] = (x[part].float() - mean) * scale
    return unit, scale


class AggregateNodeNormed(torch.autograd.Function):
    """Aggregate gain · normed(x) + shift. The norm is over nodes, and in `Aggregate` over channels.

    The weights are (3, h, h), for the own part, the operands and the users, and `addend` is (h,).
    Only x is stored for the backward pass, which recomputes the norm.
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
    ) -> Tensor:
        ctx.eps, ctx.aggregation = eps, aggregation
        ctx.save_for_backward(x, gain, shift, weights)
        h = (node_normed(x, eps)[0] * gain.to(x.dtype)).add_(shift.to(x.dtype))
        cast_weights, out = weights.to(x.dtype), torch.empty_like(x).copy_(addend.to(x.dtype))
        out.flatten(0, 1).addmm_(h.flatten(0, 1), cast_weights[0].T)
        projections = torch.stack([h.flatten(0, 1) @ weight.T for weight in cast_weights[1:]])
        aggregation.means.add_to(out, projections.view(-1, *x.shape[1:]))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, weights = ctx.saved_tensors
        (unit, scale), cast_weights = node_normed(x, ctx.eps), weights.to(x.dtype)
        grad = grad.contiguous()
        parts = [grad, *ctx.aggregation.means.transpose(grad).view(-1, *x.shape)]
        h = (unit * gain.to(x.dtype)).add_(shift.to(x.dtype)).flatten(0, 1)
        dtype = torch.promote_types(weights.dtype, torch.float32)
        of_weights, grad_h = torch.zeros_like(weights, dtype=dtype), torch.zeros_like(x)
        for part, weight, into in zip(parts, cast_weights, of_weights, strict=True):
            add_weight_gradient(into, part.flatten(0, 1), h)
            grad_h.flatten(0, 1).addmm_(part.flatten(0, 1), weight)
        of_shift = grad_h.sum(dim=0, dtype=torch.float32)  # (c, h)
        of_gain = torch.zeros_like(of_shift)
        for part in node_slices(x):
            of_gain += (grad_h[part].float() * unit[part]).sum(dim=0)
        for part in node_slices(x):
            common = (of_shift + unit[part] * of_gain) / len(x)
            grad_h[part] = (grad_h[part] - common) * (scale * gain)
        of_added = grad.sum(dim=(0, 1), dtype=dtype)
        return grad_h, of_gain.sum(dim=0), of_shift.sum(dim=0), None, of_weights, of_added, None
