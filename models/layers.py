"""Layers of the GNNs. Tensors are node-major, (n, c, h): nodes, configs, channels.

Node-major tensors make the aggregation over neighbours one product of a sparse (n, n) matrix with
a dense (n, c·h) one. What follows it concerns each node alone, so it is computed for a slice of
nodes at a time, whose tensors stay in the processor's cache, and computed again for the gradients
instead of being kept: on a processor, memory traffic costs more than arithmetic.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

SLICE_BYTES = 2 << 20


class SparseProduct:
    """Multiply (n, c, h) tensors by a fixed sparse matrix along nodes.

    Args:
        matrix: (r, n).
    """

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = _torch_csr(matrix)
        self.transposed = _torch_csr(matrix.T.tocsr())
        self.nbytes = 2 * (12 * matrix.nnz + 4 * sum(matrix.shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, c, h) to (r, c, h)."""
        return _multiply(self.matrix, x)


def _torch_csr(matrix: sparse.csr_matrix) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int32)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
        check_invariants=False,
    )


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):  # processors know no sparse half precision
        return (matrix @ x.float().flatten(1)).view(-1, *x.shape[1:])


class Neighbours:
    """A graph's edges, ready for sums over each node, what it reads and what reads it.

    Attributes:
        joint: (n, 3n) the node itself, the mean over its operands, the mean over its users.
        joint_varying: (n, 3k) the columns of `joint` that belong to the nodes `varying`.
        fixed: (n, 1, 1) 0 at the nodes `varying`, else 1.
        edge_index: (e, 2) int64 the edges themselves.

    Args:
        edge_index: (e, 2) int64 on the CPU; a row [u, v] means that u consumes v.
        n_nodes: n.
        varying: (k,) int64 nodes that differ from config to config before any message.
    """

    def __init__(self, edge_index: Tensor, n_nodes: int, varying: Tensor) -> None:
        consumer, producer = edge_index.numpy().T
        operands = _means(consumer, producer, n_nodes)
        users = _means(producer, consumer, n_nodes)
        own = sparse.identity(n_nodes, dtype=np.float32, format="csr")
        parts = (own, operands, users)
        self.joint = SparseProduct(sparse.hstack(parts, format="csr"))
        columns = [part[:, varying.numpy()] for part in parts]
        self.joint_varying = SparseProduct(sparse.hstack(columns, format="csr"))
        self.varying = varying
        self.edge_index = edge_index
        self.fixed = torch.ones(n_nodes, 1, 1).index_fill(0, varying, 0)
        self.nbytes = self.joint.nbytes + self.joint_varying.nbytes + edge_index.nbytes


def _means(row: Any, column: Any, n_nodes: int) -> sparse.csr_matrix:
    """Return (n, n): each row's mean over its neighbours; 0 where there are none."""
    degree = np.bincount(row, minlength=n_nodes)
    weights = (1 / degree[row]).astype(np.float32)
    return sparse.csr_matrix((weights, (row, column)), shape=(n_nodes, n_nodes))


class _ProjectThenAggregate(torch.autograd.Function):
    """S [h W1ᵀ; h W2ᵀ; h W3ᵀ] + b for a sparse S; keeps no more than h for the gradients."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weights: Tensor, added: Tensor, product: SparseProduct
    ) -> Tensor:
        ctx.save_for_backward(h, weights)
        ctx.product, ctx.added_shape = product, added.shape
        stacked = h.new_empty(len(weights), *h.shape)
        for weight, out in zip(weights, stacked.flatten(1, 2), strict=True):
            torch.mm(h.flatten(0, 1), weight.T, out=out)
        return _multiply(product.matrix, stacked.flatten(0, 1)).add_(added)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weights = ctx.saved_tensors
        stacked = _multiply(ctx.product.transposed, grad.contiguous())
        stacked = stacked.view(len(weights), -1, h.shape[-1])  # (3, n·c, h)
        flat = h.flatten(0, 1)
        grad_weights = torch.stack([part.T @ flat for part in stacked])
        grad_h = stacked[0] @ weights[0]
        for part, weight in zip(stacked[1:], weights[1:], strict=True):
            grad_h.addmm_(part, weight)
        return grad_h.view_as(h), grad_weights, grad.sum_to_size(ctx.added_shape), None


class _AddInSlices(torch.autograd.Function):
    """x + W function(y, …) + b for slices of nodes in turn; function(y, …) is not kept."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
        ctx: Any,
        function: Callable[..., Tensor],
        x: Tensor,
        y: Tensor,
        normaliser: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(y, normaliser, weight)
        out = x + bias
        for part in _slices(y):
            given = None if normaliser is None else normaliser[part]
            out[part].flatten(0, 1).addmm_(function(y[part], given).flatten(0, 1), weight.T)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, normaliser, weight = ctx.saved_tensors
        grad_y, grad_weight = torch.empty_like(y), torch.zeros_like(weight)
        totals = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        for part in _slices(y):
            given = None if normaliser is None else normaliser[part]
            with torch.enable_grad():
                leaf = y[part].detach().requires_grad_()
                z = ctx.function(leaf, given)
            grad_weight.addmm_(grad[part].flatten(0, 1).T, z.detach().flatten(0, 1))
            found = torch.autograd.grad(z, [leaf, *ctx.parameters], grad[part] @ weight)
            grad_y[part] = found[0]
            for total, value in zip(totals, found[1:], strict=True):
                total.add_(value)
        return None, grad, grad_y, None, grad_weight, grad.sum((0, 1)), *totals


def _slices(y: Tensor) -> list[slice]:
    """Cut the nodes of (n, c, h) so that a slice's tensor takes about SLICE_BYTES."""
    step = max(1, SLICE_BYTES // max(1, y[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(y), step)]


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
        if normaliser is None:
            weights = torch.softmax(self.logits(x), dim=1) * x.shape[1]
        else:
            weights = self.weights(x, normaliser)
        return torch.cat([x, x * weights], dim=-1)

    def weights(self, x: Tensor, normaliser: Tensor) -> Tensor:
        """Return the softmax over all configs, times their number, at those at hand; (n, c, h)."""
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
        return self._aggregated(self.norm(x), neighbours.joint, self.own.bias)

    def aggregate_split(self, shared: Tensor, varying: Tensor, neighbours: Neighbours) -> Tensor:
        """Do as `aggregate` where configs differ at k nodes only; the same result for less.

        Args:
            shared: (n, 1, h) what all configs have.
            varying: (k, c, h) what the nodes neighbours.varying have instead.
            neighbours: the edges.
        """
        fixed = self.norm(shared) * neighbours.fixed
        common = self._aggregated(fixed, neighbours.joint, self.own.bias)  # (n, 1, h)
        return self._aggregated(self.norm(varying), neighbours.joint_varying, common)

    def _aggregated(self, h: Tensor, product: SparseProduct, added: Tensor) -> Tensor:
        weights = torch.stack([self.own.weight, self.operands.weight, self.users.weight])
        result: Tensor = _ProjectThenAggregate.apply(h.float(), weights, added, product)
        return result

    def messages(self, y: Tensor) -> Tensor:
        """Map what `aggregate` gives, (n, c, h), to (n, c, h): up to where configs meet."""
        return self.channels(nn.functional.gelu(y))

    def messages_(self, y: Tensor) -> Tensor:
        """Do as `messages`, in place, for slices of nodes in turn; for inference."""
        for part in _slices(y):
            inner = nn.functional.gelu(y[part])
            torch.mul(inner, self.channels.gate(inner), out=y[part])
        return y

    def log_sum_exp(self, messages: Tensor) -> Tensor:
        """Return (n, 1, h): log of the sum over the configs of exp(x / T); for inference."""
        assert self.configs is not None
        parts = [self.configs.log_sum_exp(messages[part]) for part in _slices(messages)]
        return torch.cat(parts)

    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), from its messages; for inference.

        Args:
            x: (n, c, h).
            messages: (n, c, h) of x, by `aggregate` and `messages`.
            normaliser: (n, 1, h) as in CrossConfigAttention.
        """
        return self._joined(x, messages, normaliser)

    def _joined(self, x: Tensor, messages: Tensor, normaliser: Tensor | None) -> Tensor:
        """Return x + P [messages, messages weighted]; not weighted where configs do not meet."""
        out = x + self.project.bias
        own_weight, *weighted_weight = self.project.weight.T.split(messages.shape[-1])
        for part in _slices(messages):
            own, rows = messages[part], out[part].flatten(0, 1)
            rows.addmm_(own.flatten(0, 1), own_weight)
            if self.configs is not None:
                assert normaliser is not None
                weighted = self.configs.weights(own, normaliser[part]).mul_(own)
                rows.addmm_(weighted.flatten(0, 1), weighted_weight[0])
        return out

    def attend(self, y: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Map what `aggregate` gives to (n, c, h), or with attention (n, c, 2h); node by node."""
        y = self.messages(y)
        return y if self.configs is None else self.configs(y, normaliser)

    def forward(self, x: Tensor, aggregated: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return the block's result, (n, c, h).

        Args:
            x: (n, c, h).
            aggregated: (n, c, h) of x, by `aggregate`; overwritten in inference mode.
            normaliser: as in CrossConfigAttention.
        """
        if torch.is_inference_mode_enabled():
            messages = self.messages_(aggregated)
            if self.configs is not None and normaliser is None:
                normaliser = self.log_sum_exp(messages) - math.log(x.shape[1])
            return self._joined(x, messages, normaliser)
        parts = [self.channels] + ([self.configs] if self.configs else [])
        inner = [parameter for part in parts for parameter in part.parameters()]
        result: Tensor = _AddInSlices.apply(
            self.attend, x, aggregated, normaliser, self.project.weight, self.project.bias, *inner
        )
        return result
