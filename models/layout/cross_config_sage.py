"""The layout GNN: GraphSAGE over the pruned program with attention across configs.

Pruning, one embedding shared by node layouts and config layouts, channel attention and
cross-config attention follow the competition's winning solution (TGraph). Different here: tensors
are node-major, the first layer is split into a part per node and a part per config, norms are per
node and config, and the attention is exact over all configs however they are cut into chunks.

Tensors are (n, c, h): nodes, configs, channels. Aggregating over neighbours is then one product of
a sparse (n, n) matrix with a dense (n, c·h) one. What follows it concerns each node alone: it is
computed for a slice of nodes at a time, and again for the gradients instead of being kept.
"""

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
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions
from models.layout.sparse_aggregation import (
    Aggregation,
    Neighbours,
    SplitAggregation,
    node_slices,
)

KEPT_BYTES = 512 << 20  # of what ranking keeps of configs between two blocks
MAX_STATISTIC = 10.0  # of what is usual among train configs

Parts = Callable[[Tensor], tuple[Tensor, ...]]  # y -> what is joined of it, (n, c, h) each
Reached = tuple[int, Tensor, Tensor]  # a block's number, its x and its messages, (n, c, h) each


class ChannelAttention(nn.Module):
    """Gate each channel by what the others say: x · sigmoid(W2 relu(W1 x)).

    Squeeze-and-excitation (Hu et al., 2018) as the competition's winners used it on GNN layers. W1
    makes h channels `reduction` times fewer.
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
    ranking. All that must be known of the other configs is log mean exp(x / T), the `normaliser`,
    (n, 1, h). Given from outside, it makes scores independent of how configs are cut into chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def logits(self, x: Tensor) -> Tensor:
        """Return x / T, in the shape of x."""
        return x * torch.exp(-self.log_temperature)

    def forward(self, x: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Map (n, c, h) to (n, c, 2h); the normaliser is that of x itself if None."""
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


class SageBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs.

    h = norm(x); y = gelu(W h + W' mean over operands of h + W'' mean over users of h);
    x + P [y, cross-config attention of y], with y gated by channel attention. The mean
    aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. The norm
    is over channels, per node and config, so configs stay independent but for the attention.
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
        """Do as `aggregate` where all configs have `shared` (n, 1, h) but for `varying` (k, c, h).

        The same result, (r, c, h) of the rows of `split`, for less.
        """
        common = self._aggregated(shared, split.fixed, self.own.bias)  # (r, 1, h)
        return self._aggregated(varying, split.of_varying, common)

    def _aggregated(self, x: Tensor, aggregation: Aggregation, added: Tensor) -> Tensor:
        weights = torch.stack([self.own.weight, self.operands.weight, self.users.weight])
        return aggregation(x, self.norm, weights, added)

    def forward(self, x: Tensor, aggregated: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), on configs that see each other alone.

        `aggregated` (n, c, h), what `aggregate` makes of x, is overwritten in inference mode.
        """
        weight, bias = self.project.weight, self.project.bias
        if torch.is_inference_mode_enabled():
            for part in node_slices(aggregated):
                aggregated[part] = _added(x[part], self.attend(aggregated[part]), weight, bias)
            return aggregated
        layers = [self.channels] + ([self.configs] if self.configs else [])
        inner = [parameter for layer in layers for parameter in layer.parameters()]
        result: Tensor = _AddInSlices.apply(self.attend, x, aggregated, weight, bias, *inner)
        return result

    def attend(self, y: Tensor) -> tuple[Tensor, ...]:
        """Map what `aggregate` gives to what the block adds up, (n, c, h) each; node by node."""
        return self.meet(self.channels(nn.functional.gelu(y)))

    def meet(self, messages: Tensor, normaliser: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the messages, (n, c, h), and the same weighted by what the other configs say."""
        if self.configs is None:
            return (messages,)
        return messages, messages * self.configs.weights(messages, normaliser)

    # A block in two halves, for ranking in chunks: what is known of a config by itself, and what
    # follows once the normaliser of all configs is known.

    def messages_(self, y: Tensor) -> Tensor:
        """Make messages of what `aggregate` gives, (n, c, h), in place."""
        for part in node_slices(y):
            inner = nn.functional.gelu(y[part])
            torch.mul(inner, self.channels.gate(inner), out=y[part])
        return y

    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), in the memory of its messages."""
        for part in node_slices(messages):
            joined = self.meet(messages[part], normaliser[part])
            messages[part] = _added(x[part], joined, self.project.weight, self.project.bias)
        return messages


class _AddInSlices(torch.autograd.Function):
    """x + W [function(y)] + b for slices of nodes in turn; function(y) is not kept."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
        ctx: Any,
        function: Parts,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(y, weight)
        out = torch.empty_like(x, dtype=torch.promote_types(x.dtype, bias.dtype))
        for part in node_slices(y):
            out[part] = _added(x[part], function(y[part]), weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, weight = ctx.saved_tensors
        grad_y, grad_weight = torch.empty_like(y), torch.zeros_like(weight)
        totals = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        width = y.shape[-1]
        for part in node_slices(y):
            with torch.enable_grad():
                leaf = y[part].detach().requires_grad_()
                joined = ctx.function(leaf)
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
        return None, grad, grad_y, grad_weight, grad.sum((0, 1)), *totals


def _added(x: Tensor, joined: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> Tensor:
    """Return x + W [joined] + b for (s, c, h) tensors; without a gradient."""
    out = x + bias
    for z, of_z in zip(joined, weight.split(x.shape[-1], 1), strict=True):
        out.flatten(0, 1).addmm_(z.flatten(0, 1), of_z.T)
    return out


class CrossConfigSage(LayoutNetwork):
    """Score configs of one graph; lower = faster.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.
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
        """Return one of the network's blocks."""
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
        table = torch.einsum("hpw,sw->psh", weight, self.layout.weight).flatten(0, 1)  # (126, h)
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

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score the configs at `distinct` (c,) int64, which see each other alone; (c,) float32."""
        x, aggregated = self.embed(inputs, distinct)  # (m, c, h) each
        for i, block in enumerate(self.blocks):
            if i > 0:
                aggregated = block.aggregate(x, inputs.neighbours)
            x = block(x, aggregated)
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

    @torch.inference_mode()
    def score_all(
        self,
        inputs: LayoutInputs,
        *,
        chunk_configs: int | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> NDArray[np.float32]:
        """Score every config of a graph, as if all went through together; (c,) float32.

        A block needs its normaliser over all configs before any can pass it. So configs go through
        block by block, `chunk_configs` at a time; what they have become is kept in between as far
        as `kept_bytes` reach, the others start again. Memory does not grow with c.

        Args:
            chunk_configs: if None, so many that an (m, c, h) tensor takes `inference_tensor_mib`
                (docs/results/answered_once.md).
            kept_bytes: of what is kept of configs between two blocks.
        """
        n_distinct = len(inputs.first)
        if chunk_configs is None:
            bytes_per_config = len(inputs.opcode) * self.config.hidden * 4
            chunk_configs = max(4, (self.config.inference_tensor_mib << 20) // bytes_per_config)
        chunks = np.array_split(np.arange(n_distinct), max(1, -(-n_distinct // chunk_configs)))
        if self.config.cross_config and len(chunks) > 1:
            scores = self._scores_by_block(inputs, chunks, kept_bytes)
        else:  # with all configs in one chunk, each block sees them all
            scores = [self(inputs, chunk) for chunk in chunks]
        return torch.cat(scores).cpu().numpy()[inputs.group]

    def _scores_by_block(
        self, inputs: LayoutInputs, chunks: Sequence[Positions], kept_bytes: int
    ) -> list[Tensor]:
        kept: list[Reached | None] = [None] * len(chunks)
        normalisers: list[Tensor] = []
        for target, block in enumerate(self.blocks):
            assert block.configs is not None
            total, left = None, kept_bytes
            for number, chunk in enumerate(chunks):
                reached = kept[number] or self._start(inputs, chunk)
                reached = self._advance(inputs, reached, target, normalisers)
                _, x, messages = reached
                part = torch.cat(
                    [block.configs.log_sum_exp(messages[s]) for s in node_slices(messages)]
                )
                total = part if total is None else torch.logaddexp(total, part)
                left -= x.nbytes + messages.nbytes
                kept[number] = reached if left >= 0 else None
            assert total is not None
            normalisers.append(total - np.log(len(inputs.first)))  # (m, 1, h)
        scores = []
        for number, chunk in enumerate(chunks):
            reached = kept[number] or self._start(inputs, chunk)
            _, x, messages = self._advance(inputs, reached, len(self.blocks) - 1, normalisers)
            x = self.blocks[-1].finish(x, messages, normalisers[-1])
            scores.append(self.read_out(inputs, x, chunk))
            kept[number] = None
        return scores

    def _start(self, inputs: LayoutInputs, chunk: Positions) -> Reached:
        x, aggregated = self.embed(inputs, chunk)
        return 0, x, self.blocks[0].messages_(aggregated)

    def _advance(
        self, inputs: LayoutInputs, reached: Reached, target: int, normalisers: Sequence[Tensor]
    ) -> Reached:
        start, x, messages = reached
        for number in range(start, target):
            x = self.blocks[number].finish(x, messages, normalisers[number])
            block = self.blocks[number + 1]
            messages = block.messages_(block.aggregate(x, inputs.neighbours))
        return target, x, messages
