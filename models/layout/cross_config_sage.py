"""The layout GNN: GraphSAGE over the pruned program with attention across configs.

Pruning, one embedding shared by node layouts and config layouts, channel attention and
cross-config attention follow the competition's winning solution (TGraph). Different here: tensors
are node-major, the first layer is split into a part per node and a part per config, norms are per
node and config, and the attention is exact over all configs however they are cut into chunks.

Tensors are node-major, (n, c, h): nodes, configs, channels. That makes the aggregation over
neighbours one product of a sparse (n, n) matrix with a dense (n, c·h) one. What follows it concerns
each node alone, so it is computed for a slice of nodes at a time, whose tensors stay in the
processor's cache, and computed again for the gradients instead of being kept: on a processor,
memory traffic costs more than arithmetic.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from features.layout_codes import N_SYMBOLS, N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import N_CONFIG_STATISTICS
from models.config.networks import CrossConfigSageConfig, LayoutGnnConfig
from models.layout.inference import chunk_for, score_all
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions
from models.layout.sparse_aggregation import (
    Aggregation,
    Neighbours,
    SplitAggregation,
    node_slices,
)

MAX_STATISTIC = 10.0  # of what is usual among train configs

# (y, normaliser) -> what is joined of y, (n, c, h) each
Parts = Callable[[Tensor, Tensor | None], tuple[Tensor, ...]]


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


class CrossConfigSage(LayoutNetwork):
    """Score configs of one graph; lower = faster.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.

    Args:
        config: widths and depth.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = CrossConfigSageConfig
    config: CrossConfigSageConfig

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__(config)
        hidden = config.hidden
        self.opcode = nn.Embedding(N_OPCODES, config.opcode_width)
        # One table for "which dimension stands here", for node layouts and config layouts alike.
        self.layout = nn.Embedding(N_SYMBOLS, config.layout_width)
        layout_width = VALUES_PER_TENSOR * config.layout_width
        self.node = nn.Linear(N_NODE_FEATURES + config.opcode_width + layout_width, hidden)
        self.tensor_roles = nn.Linear(N_TENSORS * layout_width, hidden)
        self.blocks: Sequence[SageBlock] = nn.ModuleList(  # type: ignore[assignment]
            self.make_block(config) for _ in range(config.blocks)
        )
        self.norm = nn.LayerNorm(hidden)
        n_pooled = 3 + config.pool_by_bytes
        if config.statistics:
            self.statistics = nn.Sequential(nn.Linear(N_CONFIG_STATISTICS, hidden), nn.GELU())
            self.statistics_scale: Tensor
            self.register_buffer("statistics_scale", torch.ones(N_CONFIG_STATISTICS))
            n_pooled += 1
        self.head = nn.Sequential(
            nn.Linear(n_pooled * hidden, hidden), nn.GELU(), nn.Linear(hidden, 1, bias=False)
        )
        self.known_opcode: Tensor
        self.register_buffer("known_opcode", torch.ones(N_OPCODES, dtype=torch.bool))

    def make_block(self, config: CrossConfigSageConfig) -> SageBlock:
        """Return one block of the network."""
        return SageBlock(
            config.hidden,
            channel_reduction=config.channel_reduction,
            cross_config=config.cross_config,
        )

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        """Remember which opcodes training has; all others share the embedding of "unknown"."""
        self.known_opcode.zero_()
        self.known_opcode[torch.from_numpy(opcodes.astype(np.int64))] = True

    def set_statistics_scale(self, scale: NDArray[np.float32]) -> None:
        """Remember how far each statistic usually is from its mean over a graph's configs; (s,)."""
        self.statistics_scale.copy_(torch.from_numpy(scale))

    def nodes(self, inputs: LayoutInputs) -> Tensor:
        """Embed what all configs share; (m, 1, h)."""
        opcode = inputs.opcode * self.known_opcode[inputs.opcode]
        parts = [inputs.node_feat, self.opcode(opcode), self.layout(inputs.layout).flatten(1)]
        return self.node(torch.cat(parts, dim=1))[:, None, :]

    def settings(self, vectors: Tensor, choices: Tensor) -> Tensor:
        """Embed the (c, k) int64 choices among layout vectors (v, 18) int64; (k, c, h).

        A graph has few distinct vectors, so each is embedded once. The layouts' embedding and the
        linear layer behind it are one table of 18 · 7 rows, of which a vector is a sum of 18.
        """
        width = self.layout.embedding_dim
        weight = self.tensor_roles.weight.view(-1, N_LAYOUT_VALUES, width)  # (h, 18, w)
        table = torch.einsum("hpw,sw->psh", weight, self.layout.weight).flatten(0, 1)
        offsets = torch.arange(N_LAYOUT_VALUES, device=vectors.device) * N_SYMBOLS
        summed = nn.functional.embedding_bag(vectors + offsets, table, mode="sum")  # (v, h)
        return nn.functional.embedding(choices.T, summed + self.tensor_roles.bias)

    def embed(self, inputs: LayoutInputs, distinct: Positions) -> tuple[Tensor, Tensor]:
        """Join nodes and configs; (m, c, h), and the same aggregated for the first block."""
        nodes, ids = self.nodes(inputs), inputs.config_ids
        choices = inputs.choices(distinct)
        varying = nodes[ids] + self.settings(inputs.vectors, choices)  # (k, c, h)
        x = nodes.expand(-1, len(choices), -1).index_copy(0, ids, varying)
        return x, self.blocks[0].aggregate_split(nodes, varying, inputs.neighbours)

    def forward(
        self, inputs: LayoutInputs, distinct: Positions, normalisers: Sequence[Tensor] = ()
    ) -> Tensor:
        """Score configs.

        Args:
            inputs: the graph.
            distinct: (c,) int64 positions of distinct configs.
            normalisers: one (m, 1, h) per block, see CrossConfigAttention; where there are none,
                each block takes the configs at hand for all there are.

        Returns:
            (c,) float32 scores, lower = faster.
        """
        x, aggregated = self.embed(inputs, distinct)
        for i, block in enumerate(self.blocks):
            if i > 0:
                aggregated = block.aggregate(x, inputs.neighbours)
            x = block(x, aggregated, normalisers[i] if normalisers else None)
        return self.read_out(inputs, x, distinct)

    def read_out(self, inputs: LayoutInputs, x: Tensor, distinct: Positions) -> Tensor:
        """Map what the last block gives, (m, c, h), to (c,) scores of the configs `distinct`."""
        mean, of_configurable, *by_bytes, largest = self._pool(inputs, x)
        pooled = [mean, largest, of_configurable, *by_bytes]
        if inputs.statistics is not None:
            rows = torch.from_numpy(distinct).to(inputs.statistics.device)
            scaled = inputs.statistics[rows] / self.statistics_scale
            pooled.append(self.statistics(scaled.clamp(-MAX_STATISTIC, MAX_STATISTIC)))
        return self.head(torch.cat(pooled, dim=-1)).squeeze(-1)

    def _pool(self, inputs: LayoutInputs, x: Tensor) -> list[Tensor]:
        """Pool norm(x) over nodes: means of all, of the configurable, by bytes, and the largest.

        The means are one product with a (2 or 3, m) matrix, taken slice by slice where no gradient
        is asked for.
        """
        weights = x.new_zeros(2, len(x), dtype=torch.float32)
        weights[0] = 1 / len(x)
        weights[1].index_fill_(0, inputs.config_ids, 1 / max(1, len(inputs.config_ids)))
        if self.config.pool_by_bytes:
            weights = torch.cat([weights, inputs.bytes_share[None]])
        parts = node_slices(x) if torch.is_inference_mode_enabled() else [slice(None)]
        means, largest = [], []
        for part in parts:
            normed = self.norm(x[part]).float()
            with torch.autocast(x.device.type, enabled=False):  # a mean of thousands needs it
                means.append(weights[:, part] @ normed.flatten(1))
            largest.append(normed.amax(dim=0))
        total = means[0] if len(means) == 1 else torch.stack(means).sum(dim=0)
        highest = largest[0] if len(largest) == 1 else torch.stack(largest).amax(dim=0)
        return [*total.view(-1, *x.shape[1:]), highest]

    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config of a graph, as if all went through together; (c,) float32."""
        return score_all(self, inputs, chunk_configs=chunk_for(inputs, self.config))
