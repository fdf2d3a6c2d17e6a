"""Layers of the GNNs. Tensors are node-major, (n, c, h): nodes, configs, channels.

Node-major tensors make the aggregation over neighbours one product of a sparse (n, n) matrix with
a dense (n, c·h) one. What follows it concerns each node alone, so it is computed for a slice of
nodes at a time, whose tensors stay in the processor's cache, and computed again for the gradients
instead of being kept: on a processor, memory traffic costs more than arithmetic.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.layout.node_slices import node_slices
from models.layout.sparse_aggregation import Aggregation, Neighbours, SplitAggregation

# (y, normaliser) -> what is joined of y, (n, c, h) each
Parts = Callable[[Tensor, Tensor | None], tuple[Tensor, ...]]


class _AddInSlices(torch.autograd.Function):
    """x + W [function(y, …)] + b for slices of nodes in turn; function(y, …) is not kept."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
        ctx: Any,
        function: Parts,
        x: Tensor,
        y: Tensor,
        normaliser: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(y, normaliser, weight)
        out = torch.empty_like(x, dtype=torch.promote_types(x.dtype, bias.dtype))
        for part in node_slices(y):
            out[part] = _added(x[part], function(y[part], _of(normaliser, part)), weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, normaliser, weight = ctx.saved_tensors
        grad_y, grad_weight = torch.empty_like(y), torch.zeros_like(weight)
        totals = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        width = y.shape[-1]
        for part in node_slices(y):
            with torch.enable_grad():
                leaf = y[part].detach().requires_grad_()
                joined = ctx.function(leaf, _of(normaliser, part))
            rows, grads = grad[part].flatten(0, 1), []
            for z, of_z, into in zip(
                joined, weight.split(width, 1), grad_weight.split(width, 1), strict=True
            ):
                into.addmm_(rows.T, z.detach().flatten(0, 1))
                grads.append((rows @ of_z).view_as(z))
            gradients = torch.autograd.grad(joined, [leaf, *ctx.parameters], grads)
            grad_y[part] = gradients[0]
            for total, value in zip(totals, gradients[1:], strict=True):
                total.add_(value)
        return None, grad, grad_y, None, grad_weight, grad.sum((0, 1)), *totals


def _of(normaliser: Tensor | None, part: slice) -> Tensor | None:
    return None if normaliser is None else normaliser[part]


def _added(x: Tensor, joined: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> Tensor:
    """Return x + W [joined] + b for (s, c, h) tensors; without a gradient."""
    out = x + bias
    for z, of_z in zip(joined, weight.split(x.shape[-1], 1), strict=True):
        out.flatten(0, 1).addmm_(z.flatten(0, 1), of_z.T)
    return out


class ChannelAttention(nn.Module):
    """Gate each channel by what the others say: x · sigmoid(W2 relu(W1 x)).

    Squeeze-and-excitation (Hu et al., 2018) as the competition's winners used it on GNN layers.

    Args:
        width: h.
        reduction: the inner width is h / reduction.
    """

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        inner = max(1, width // reduction)
        self.gate = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, h) to (…, h)."""
        return x * self.gate(x)


class CrossConfigAttention(nn.Module):
    """Let a config see the others: join x with x · softmax over configs of x / T, T learned.

    From the competition's winning solution, with one change: the softmax is multiplied by the
    number of configs, so weights average 1 and 64 configs in training mean the same as 1,000 in
    ranking. What must be known of the other configs is one number per node and channel,
    log mean exp(x / T): `normaliser`. Given from outside, it makes scores independent of how
    configs are cut into chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def logits(self, x: Tensor) -> Tensor:
        """Return x / T, in the shape of x."""
        return x * torch.exp(-self.log_temperature)

    def forward(self, x: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Map (n, c, h) to (n, c, 2h).

        Args:
            x: (n, c, h).
            normaliser: (n, 1, h) log mean exp(x / T) over all configs; from x itself if None.
        """
        return torch.cat([x, x * self.weights(x, normaliser)], dim=-1)

    def weights(self, x: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return the softmax over all configs, times their number, at those at hand; (n, c, h)."""
        if normaliser is None:
            return torch.softmax(self.logits(x), dim=1) * x.shape[1]
        return self.logits(x).sub_(normaliser).exp_()

    def log_sum_exp(self, x: Tensor) -> Tensor:
        """Return (n, 1, h): log of the sum over the configs at hand of exp(x / T)."""
        logits = self.logits(x)
        highest = logits.amax(dim=1, keepdim=True)
        total = logits.sub_(highest).exp_().sum(dim=1, keepdim=True)
        return total.log_().add_(highest)


def log_mean_exp(x: Tensor, *, dim: int) -> Tensor:
    """Return log(mean(exp(x))) along `dim`, which stays as an axis of length 1."""
    return torch.logsumexp(x, dim=dim, keepdim=True) - math.log(x.shape[dim])


class SageBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs.

    h = norm(x); y = gelu(W h + W' mean over operands of h + W'' mean over users of h);
    x + P [y, cross-config attention of y], with y gated by channel attention. The mean
    aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. The norm
    is over channels, per node and config, so configs stay independent but for the attention.

    Args:
        width: h.
        channel_reduction: see ChannelAttention.
        cross_config: whether configs see each other.
    """

    def __init__(self, width: int, *, channel_reduction: int, cross_config: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.channels = ChannelAttention(width, channel_reduction)
        self.configs = CrossConfigAttention() if cross_config else None
        self.project = nn.Linear(2 * width if cross_config else width, width)

    def aggregate(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        """Map (n, c, h) to (n, c, h): own part and means over neighbours, before the gelu."""
        return self._aggregated(x, neighbours.every, self.own.bias)

    def aggregate_split(self, shared: Tensor, varying: Tensor, split: SplitAggregation) -> Tensor:
        """Do as `aggregate` where configs differ at some nodes only; the same result for less.

        Args:
            shared: (n, 1, h) what all configs have.
            varying: (k, c, h) what the nodes that vary have instead.
            split: what rows take of these nodes, and of the others.
        """
        common = self._aggregated(shared, split.fixed, self.own.bias)  # (r, 1, h)
        return self._aggregated(varying, split.of_varying, common)

    def _aggregated(self, x: Tensor, aggregation: Aggregation, added: Tensor) -> Tensor:
        weights = torch.stack([self.own.weight, self.operands.weight, self.users.weight])
        return aggregation(x, self.norm, weights, added)

    def messages(self, y: Tensor) -> Tensor:
        """Map what `aggregate` gives, (n, c, h), to (n, c, h): up to where configs meet."""
        return self.channels(nn.functional.gelu(y))

    def messages_(self, y: Tensor) -> Tensor:
        """Do as `messages`, in place, for slices of nodes in turn; for inference."""
        for part in node_slices(y):
            inner = nn.functional.gelu(y[part])
            torch.mul(inner, self.channels.gate(inner), out=y[part])
        return y

    def log_sum_exp(self, messages: Tensor) -> Tensor:
        """Return (n, 1, h): log of the sum over the configs of exp(x / T); for inference."""
        assert self.configs is not None
        parts = [self.configs.log_sum_exp(messages[part]) for part in node_slices(messages)]
        return torch.cat(parts)

    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), from its messages; for inference.

        Args:
            x: (n, c, h).
            messages: (n, c, h) of x, by `aggregate` and `messages_`; overwritten.
            normaliser: (n, 1, h) as in CrossConfigAttention.
        """
        return self._add_in_place(self.meet, x, messages, normaliser)

    def _add_in_place(
        self, function: Parts, x: Tensor, y: Tensor, normaliser: Tensor | None
    ) -> Tensor:
        """Return x + P [function(y, …)], in y's memory; for inference."""
        for part in node_slices(y):
            joined = function(y[part], _of(normaliser, part))
            y[part] = _added(x[part], joined, self.project.weight, self.project.bias)
        return y

    def meet(self, messages: Tensor, normaliser: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return what a block adds up, (n, c, h) each: messages, and the same weighted."""
        if self.configs is None:
            return (messages,)
        return messages, messages * self.configs.weights(messages, normaliser)

    def attend(self, y: Tensor, normaliser: Tensor | None = None) -> tuple[Tensor, ...]:
        """Map what `aggregate` gives, (n, c, h), to what `meet` gives; node by node."""
        return self.meet(self.messages(y), normaliser)

    def forward(self, x: Tensor, aggregated: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return the block's result, (n, c, h).

        Args:
            x: (n, c, h).
            aggregated: (n, c, h) of x, by `aggregate`; overwritten in inference mode.
            normaliser: as in CrossConfigAttention.
        """
        if torch.is_inference_mode_enabled():
            return self._add_in_place(self.attend, x, aggregated, normaliser)
        parts = [self.channels] + ([self.configs] if self.configs else [])
        inner = [parameter for part in parts for parameter in part.parameters()]
        result: Tensor = _AddInSlices.apply(
            self.attend, x, aggregated, normaliser, self.project.weight, self.project.bias, *inner
        )
        return result
