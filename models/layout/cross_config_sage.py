"""The layout GNN: GraphSAGE over the pruned program with attention across configs.

Pruning, one embedding shared by node layouts and config layouts, channel attention and
cross-config attention follow the competition's winning solution (TGraph). Different here: tensors
are node-major, the first layer is split into a part per node and a part per config, norms are per
node and config, and the attention is exact over all configs however they are cut into chunks.

Tensors are (n, c, h): nodes, configs, channels. Aggregating over neighbours is then one product of
a sparse (n, n) matrix with a dense (n, c·h) one. Operations with gradients of their own run by
plain torch or a GPU's fused kernels; what follows an aggregation is computed again for the
gradients instead of being kept.
"""

from collections.abc import Sequence
from functools import cache, reduce
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from data.graphs.packing import N_SYMBOLS, N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import N_CONFIG_STATISTICS
from models.config.networks import CrossConfigSageConfig, LayoutGnnConfig
from models.layout import fused_ops, plain_ops
from models.layout.inputs import (
    Aggregation,
    LayoutInputs,
    NodeInputs,
    SparseAggregation,
    SplitAggregation,
)
from models.layout.network import N_OPCODES, LayoutNetwork, Positions
from models.layout.plain_ops import (
    Norm,
    added,
    gated,
    log_sum_exp,
    node_slices,
    weigh,
)
from models.training.device import by_own_types, ranking_bytes, storage_dtype, uploaded

MAX_STATISTIC = 10.0  # of what is usual among train configs

MIN_CAPABILITY = 7, 0  # of a GPU that Triton compiles for

Reached = tuple[int, Tensor, Tensor]  # a block's number, its x and its messages, (n, c, h) each


def ops_for(x: Tensor, *, fused: bool) -> ModuleType:
    """Return `fused_ops` for tensors on a GPU that Triton compiles for; else `plain_ops`."""
    return fused_ops if fused and x.is_cuda and _has_triton(x.device) else plain_ops


@cache
def _has_triton(device: torch.device) -> bool:
    is_recent = torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    return is_recent and find_spec("triton") is not None


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
        grad_added = ctx.ops.sum_rows(grad, dtype, per_node=len(shape) > 1)
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
    """What all configs share, (n, 1, h), as (n, c, h), but for the nodes `ids` that vary."""

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

    This form serves segments; SageBlock has it in `attend` of models/layout/plain_ops.py.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def sharpness(self) -> Tensor:
        return torch.exp(-self.log_temperature)

    def forward(self, x: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Map (n, c, h) to (n, c, 2h); the normaliser is that of x itself if None."""
        logits = x * self.sharpness()
        if normaliser is None:
            return torch.cat([x, x * torch.softmax(logits, dim=1) * x.shape[1]], dim=-1)
        return torch.cat([x, x * (logits - normaliser).exp()], dim=-1)


class SageBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs.

    h = norm(x); y = gelu(W h + W' mean over operands of h + W'' mean over users of h);
    x + P [y, cross-config attention of y], with y gated by channel attention. The mean
    aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. The norm
    is over channels, per node and config, so configs stay independent but for the attention.
    """

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__()
        width, self.fused = config.hidden, config.fused
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.channels = ChannelAttention(width, config.channel_reduction)
        self.configs = CrossConfigAttention() if config.cross_config else None
        self.project = nn.Linear(2 * width if config.cross_config else width, width)

    @by_own_types
    def aggregate(self, x: Tensor, neighbours: SparseAggregation) -> Tensor:
        """Map (n, c, h) to (n, c, h): own part and means over neighbours, before the gelu."""
        return self._aggregated(x, neighbours.every, self.own.bias)

    @by_own_types
    def aggregate_split(self, shared: Tensor, varying: Tensor, split: SplitAggregation) -> Tensor:
        """Do as `aggregate` where all configs have `shared` (n, 1, h) but for `varying` (k, c, h).

        The same result, (r, c, h) of the rows of `split`, for less.
        """
        common = self._aggregated(shared, split.fixed, self.own.bias)  # (r, 1, h)
        return self._aggregated(varying, split.of_varying, common)

    def _aggregated(self, x: Tensor, aggregation: Aggregation, added: Tensor) -> Tensor:
        weights = torch.stack([self.own.weight, self.operands.weight, self.users.weight])
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        ops = ops_for(x, fused=self.fused)
        result: Tensor = Aggregate.apply(x, *norm, weights, added, aggregation, ops)
        return result

    @by_own_types
    def forward(self, x: Tensor, aggregated: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), on configs that see each other alone."""
        sharpness = self.configs.sharpness() if self.configs else None
        result: Tensor = AttendAndAdd.apply(
            x, aggregated, ops_for(x, fused=self.fused), sharpness, *self.node_weights()
        )
        return result

    def node_weights(self) -> tuple[Tensor, ...]:
        """Return W1, b1, W2 and b2 of the channel attention, then P and its bias."""
        first, second = self.channels.gate[0], self.channels.gate[2]
        return (*first.parameters(), *second.parameters(), *self.project.parameters())

    # A block in two halves, for ranking in chunks: what is known of a config by itself, and what
    # follows once the normaliser of all configs is known.

    @by_own_types
    def messages_(self, y: Tensor) -> Tensor:
        """Make messages of what `aggregate` gives, (n, c, h), in place."""
        weights = [tensor.to(y.dtype) for tensor in self.node_weights()]
        for part in node_slices(y):
            torch.ops.aten.glu.out(gated(y[part], *weights[:4])[0], 0, out=y[part][None])
        return y

    @by_own_types
    def log_sum_exp(self, messages: Tensor) -> Tensor:
        """Return (n, 1, h) float32: log of the sum over the configs at hand of exp(u / T)."""
        assert self.configs is not None
        sharpness = self.configs.sharpness()
        parts = [log_sum_exp(messages[part], sharpness) for part in node_slices(messages)]
        return torch.cat(parts)

    @by_own_types
    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        """Return the block's result, (n, c, h), in the memory of its messages."""
        assert self.configs is not None
        sharpness = self.configs.sharpness()
        weight, bias = (tensor.to(x.dtype) for tensor in self.project.parameters())
        for part in node_slices(messages):
            weighed = weigh(messages[part], sharpness, normaliser[part])
            messages[part] = added(x[part], (messages[part], weighed), weight, bias)
        return messages


class CrossConfigSage(LayoutNetwork):
    """Score configs of one graph; lower = faster.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = CrossConfigSageConfig
    config: CrossConfigSageConfig
    is_recordable = True

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
            SageBlock(config) for _ in range(config.blocks)
        )
        self.norm = nn.LayerNorm(hidden)
        n_pooled = 3 + config.pool_by_bytes
        self.reads_statistics = config.statistics
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

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        """Remember which opcodes training has; all others share the embedding of "unknown"."""
        self.known_opcode.zero_()
        self.known_opcode[torch.from_numpy(opcodes.astype(np.int64))] = True

    def set_statistics_scale(self, scale: NDArray[np.float32]) -> None:
        """Remember how far each statistic usually is from its mean over a graph's configs; (s,)."""
        self.statistics_scale.copy_(torch.from_numpy(scale))

    def nodes(self, inputs: NodeInputs) -> Tensor:
        """Embed what all configs share; (m, 1, h)."""
        opcode = inputs.opcode * self.known_opcode[inputs.opcode]
        parts = [inputs.node_feat, self.opcode(opcode), self.layout(inputs.layout).flatten(1)]
        nodes: Tensor = self.node(torch.cat(parts, dim=1))[:, None, :]
        return nodes.to(storage_dtype(inputs.opcode.device))

    def settings(self, vectors: Tensor, choices: Tensor) -> Tensor:
        """Embed the (c, k) int64 choices among layout vectors (v, 18) int64; (k, c, h).

        A graph has few distinct vectors, so each is embedded once. The layouts' embedding and the
        linear layer behind it are one table (18 · 7, h), of which a vector is a sum of 18 rows.
        """
        width = self.layout.embedding_dim
        weight = self.tensor_roles.weight.view(-1, N_LAYOUT_VALUES, width)  # (h, 18, w)
        with torch.autocast(vectors.device.type, enabled=False):
            table = torch.einsum("hpw,sw->psh", weight, self.layout.weight).flatten(0, 1)
        offsets = torch.arange(N_LAYOUT_VALUES, device=vectors.device) * N_SYMBOLS
        summed = nn.functional.embedding_bag(vectors + offsets, table, mode="sum")  # (v, h)
        settings = (summed.float() + self.tensor_roles.bias).to(storage_dtype(vectors.device))
        return nn.functional.embedding(choices.T, settings)

    def embed(self, inputs: LayoutInputs, distinct: Positions | Tensor) -> tuple[Tensor, Tensor]:
        """Join nodes and configs; (m, c, h), and the same aggregated for the first block."""
        nodes, ids = self.nodes(inputs), inputs.config_ids
        varying = nodes[ids] + self.settings(inputs.vectors, inputs.choices(distinct))  # (k, c, h)
        ops = ops_for(varying, fused=self.config.fused)
        x: Tensor = Broadcast.apply(nodes, ids, varying, ops)
        return x, self.blocks[0].aggregate_split(nodes, varying, inputs.neighbours)

    def forward(self, inputs: LayoutInputs, distinct: Positions | Tensor) -> Tensor:
        """Score the configs at `distinct` (c,) int64, which see each other alone; (c,) float32."""
        x, aggregated = self.embed(inputs, distinct)  # (m, c, h) each
        for i, block in enumerate(self.blocks):
            if i > 0:
                aggregated = block.aggregate(x, inputs.neighbours)
            x = block(x, aggregated)
        return self.read_out(inputs, x, distinct)

    @by_own_types
    def read_out(self, inputs: LayoutInputs, x: Tensor, distinct: Positions | Tensor) -> Tensor:
        """Map what the last block gives, (m, c, h), to (c,) scores of the configs `distinct`."""
        shares = x.new_zeros(2, len(x), dtype=torch.float32)
        shares[0] = 1 / len(x)
        shares[1].index_fill_(0, inputs.config_ids, 1 / max(1, len(inputs.config_ids)))
        if self.config.pool_by_bytes:
            shares = torch.cat([shares, inputs.bytes_share[None]])
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        ops = ops_for(x, fused=self.config.fused)
        if torch.is_inference_mode_enabled():
            sums, largest, *_ = ops.pool(x, Norm(*norm), shares, for_gradients=False)
        else:
            sums, largest = Pool.apply(x, *norm, shares, ops)
        pooled = [sums[0], largest, *sums[1:]]
        if inputs.statistics is not None:
            rows = uploaded(distinct, inputs.statistics.device)
            scaled = inputs.statistics[rows] / self.statistics_scale
            pooled.append(self.statistics(scaled.clamp(-MAX_STATISTIC, MAX_STATISTIC)))
        scores: Tensor = self.head(torch.cat(pooled, dim=-1)).squeeze(-1)
        return scores.float()

    @torch.inference_mode()
    def score_all(
        self,
        inputs: LayoutInputs,
        *,
        chunk_configs: int | None = None,
        kept_bytes: int | None = None,
    ) -> NDArray[np.float32]:
        """Score every config of a graph, as if all went through together; (c,) float32.

        A block needs its normaliser over all configs before any can pass it. So configs go through
        block by block, `chunk_configs` at a time; what they have become is kept in between as far
        as `kept_bytes` reach, the others start again. Memory does not grow with c; where the two
        are None, `ranking_bytes` says how much it is.
        """
        n_counted = len(inputs.first) - inputs.n_query_configs
        device = inputs.opcode.device
        tensor_bytes, kept_limit = ranking_bytes(device, self.config.inference_tensor_mib)
        if chunk_configs is None:
            width_bytes = self.config.hidden * storage_dtype(device).itemsize
            chunk_configs = max(4, tensor_bytes // (len(inputs.opcode) * width_bytes))
        chunks = [
            part
            for rows in np.split(np.arange(len(inputs.first)), [n_counted])
            for part in np.array_split(rows, -(-len(rows) // chunk_configs) or 1)
            if len(part)
        ]
        if self.config.cross_config and len(chunks) > 1:
            scores = self._scores_by_block(inputs, chunks, n_counted, kept_bytes or kept_limit)
        else:  # with all configs in one chunk, each block sees them all
            scores = [self(inputs, chunk) for chunk in chunks]
        return torch.cat(scores).cpu().numpy()[inputs.group]

    def _scores_by_block(
        self, inputs: LayoutInputs, chunks: Sequence[Positions], n_counted: int, kept_bytes: int
    ) -> list[Tensor]:
        kept: list[Reached | None] = [None] * len(chunks)
        normalisers: list[Tensor] = []
        for block in self.blocks:
            sums, left = list[Tensor](), kept_bytes
            for number, chunk in enumerate(chunks):
                reached = self._advance(inputs, chunk, kept[number], normalisers)
                _, x, messages = reached
                if chunk[0] < n_counted:  # what query configs are does not matter to the others
                    sums.append(block.log_sum_exp(messages))
                left -= x.nbytes + messages.nbytes
                kept[number] = reached if left >= 0 else None
            normalisers.append(reduce(torch.logaddexp, sums) - np.log(n_counted))  # (m, 1, h)
        scores = []
        for number, chunk in enumerate(chunks):
            _, x, messages = self._advance(inputs, chunk, kept[number], normalisers[:-1])
            x = self.blocks[-1].finish(x, messages, normalisers[-1])
            scores.append(self.read_out(inputs, x, chunk))
            kept[number] = None
        return scores

    def _advance(
        self,
        inputs: LayoutInputs,
        chunk: Positions,
        reached: Reached | None,
        normalisers: Sequence[Tensor],
    ) -> Reached:
        """Take a chunk, kept or from the start, to the block behind those with a normaliser."""
        if reached is None:
            x, aggregated = self.embed(inputs, chunk)
            reached = 0, x, self.blocks[0].messages_(aggregated)
        start, x, messages = reached
        for number in range(start, len(normalisers)):
            x = self.blocks[number].finish(x, messages, normalisers[number])
            block = self.blocks[number + 1]
            messages = block.messages_(block.aggregate(x, inputs.neighbours))
        return len(normalisers), x, messages
