"""The layout GNN: GraphSAGE over the pruned program with attention across configs.

Four parts follow the competition's winning solution (TGraph): pruning, one embedding for node
layouts and config layouts, channel attention and cross-config attention. Four parts differ. Tensors
are node-major. The first layer has a part per node and a part per config. Norms are per node and
config. The attention is exact over all configs in any division into chunks.

Tensors are (n, c, h): nodes, configs, channels. Aggregation over neighbours is then one product of
a sparse (n, n) matrix with a dense (n, c·h) matrix. Autograd functions run plain torch or fused GPU
kernels. They recompute tensors after an aggregation in the backward pass, which saves memory.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from data.graphs.packing import N_SYMBOLS, N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import N_CONFIG_STATISTICS
from models.config.networks import CrossConfigSageConfig, LayoutGnnConfig
from models.layout import fused_ops
from models.layout.attention import CrossConfigAttention
from models.layout.autograd_ops import Aggregate, AttendAndAdd, Broadcast, Pool
from models.layout.exact_ranking import score_in_chunks
from models.layout.inputs import (
    Aggregation,
    LayoutInputs,
    NodeInputs,
    SparseAggregation,
    SplitAggregation,
)
from models.layout.network import N_OPCODES, LayoutNetwork, Positions
from models.layout.node_norm_ops import AggregateNodeNormed
from models.layout.plain_ops import Norm
from models.training.device import storage_dtype, without_autocast

# Limit of a statistic in multiples of its scale among train configs.
MAX_STATISTIC = 10.0


class ChannelAttention(nn.Module):
    """Gate each channel by all channels: x · sigmoid(W2 relu(W1 x)).

    This is squeeze-and-excitation (Hu et al., 2018), which the competition's winners used on GNN
    layers. W1 divides the number of channels by `reduction`.
    """

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        inner = max(1, width // reduction)
        self.gate = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class SageBlock(nn.Module):
    """One residual round of message passing with attention over channels and configs.

    h = norm(x); y = gelu(W h + W' mean over operands of h + W'' mean over users of h); x + P [y,
    cross-config attention of y], with y gated by channel attention.

    The mean aggregation is GraphSAGE's (Hamilton et al., 2017), with separate edge directions. The
    norm is over the channels of a node, or over the nodes of a channel. Both are per config, so
    only the attention connects configs.
    """

    def __init__(self, config: CrossConfigSageConfig, *, over_nodes: bool = False) -> None:
        super().__init__()
        width, self.config, self.over_nodes = config.hidden, config, over_nodes
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)
        self.operands = nn.Linear(width, width, bias=False)
        self.users = nn.Linear(width, width, bias=False)
        self.channels = ChannelAttention(width, config.channel_reduction)
        self.configs = CrossConfigAttention() if config.cross_config else None
        self.project = nn.Linear(2 * width if config.cross_config else width, width)

    @without_autocast
    def aggregate(self, x: Tensor, neighbours: SparseAggregation) -> Tensor:
        """Sum the own part and the means over neighbours of x, (n, c, h), before the gelu."""
        return self._aggregate(x, neighbours.every, self.own.bias)

    @without_autocast
    def aggregate_split(self, shared: Tensor, varying: Tensor, split: SplitAggregation) -> Tensor:
        """Aggregate cheaply if only some nodes differ between configs.

        Args:
            shared: (n, 1, h) nodes of all configs.
            varying: (k, c, h) values of the nodes `split.varying`, which replace `shared`.
            split: Edges of the graph.

        Returns:
            (r, c, h), the same result as `aggregate` for the rows of `split`.
        """
        common = self._aggregate(shared, split.fixed, self.own.bias)  # (r, 1, h)
        return self._aggregate(varying, split.of_varying, common)

    def _aggregate(self, x: Tensor, aggregation: Aggregation, addend: Tensor) -> Tensor:
        weights = torch.stack([self.own.weight, self.operands.weight, self.users.weight])
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        if self.over_nodes:
            over_nodes: Tensor = AggregateNodeNormed.apply(x, *norm, weights, addend, aggregation)
            return over_nodes
        ops = fused_ops.ops_for(x, self.config)
        result: Tensor = Aggregate.apply(x, *norm, weights, addend, aggregation, ops)
        return result

    @without_autocast
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Apply the second half of the block to its input x and the result y of `aggregate`.

        All tensors are (n, c, h), and their configs see each other.
        """
        sharpness = self.configs.sharpness() if self.configs else None
        result: Tensor = AttendAndAdd.apply(
            x, y, fused_ops.ops_for(x, self.config), sharpness, *self.node_weights()
        )
        return result

    def node_weights(self) -> tuple[Tensor, ...]:
        """Return W1, b1, W2 and b2 of the channel attention, then P and its bias."""
        first, second = self.channels.gate[0], self.channels.gate[2]
        return (*first.parameters(), *second.parameters(), *self.project.parameters())


class CrossConfigSage(LayoutNetwork):
    """Score configs of one graph. A lower score means a faster config.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = CrossConfigSageConfig
    config: CrossConfigSageConfig
    is_recordable = True

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__(config)
        hidden = config.hidden
        self.over_nodes = config.norm == "nodes"
        self.opcode = nn.Embedding(N_OPCODES, config.opcode_width)
        # Node layouts and config layouts share the embedding of dimensions.
        self.layout = nn.Embedding(N_SYMBOLS, config.layout_width)
        layout_width = VALUES_PER_TENSOR * config.layout_width
        self.node = nn.Linear(N_NODE_FEATURES + config.opcode_width + layout_width, hidden)
        self.tensor_roles = nn.Linear(N_TENSORS * layout_width, hidden)
        self.blocks: Sequence[SageBlock] = nn.ModuleList(  # type: ignore[assignment]
            SageBlock(config, over_nodes=self.over_nodes) for _ in range(config.blocks)
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
        """Store the opcodes of the train graphs. All others share the embedding of "unknown"."""
        self.known_opcode.zero_()
        self.known_opcode[torch.from_numpy(opcodes.astype(np.int64))] = True

    def set_statistics_scale(self, scale: NDArray[np.float32]) -> None:
        """Store the typical distance, (s,), of each statistic from its mean in a graph."""
        self.statistics_scale.copy_(torch.from_numpy(scale))

    def nodes(self, inputs: NodeInputs) -> Tensor:
        """Embed the part of the nodes that all configs share, (m, 1, h)."""
        opcode = inputs.opcode * self.known_opcode[inputs.opcode]
        parts = [inputs.node_feat, self.opcode(opcode), self.layout(inputs.layout).flatten(1)]
        nodes: Tensor = self.node(torch.cat(parts, dim=1))[:, None, :]
        return nodes.to(storage_dtype(inputs.opcode.device))

    def settings(self, vectors: Tensor, choices: Tensor) -> Tensor:
        """Embed the layouts of configurable nodes.

        A graph has few distinct vectors, so each is embedded once. The layouts' embedding and the
        following linear layer form one table (18 · 7, h). A vector is a sum of 18 rows.

        Args:
            vectors: (v, 18) int64 layout vectors.
            choices: (c, k) int64 rows of `vectors`.

        Returns:
            (k, c, h).
        """
        width = self.layout.embedding_dim
        weight = self.tensor_roles.weight.view(-1, N_LAYOUT_VALUES, width)  # (h, 18, w)
        with torch.autocast(vectors.device.type, enabled=False):
            table = torch.einsum("hpw,sw->psh", weight, self.layout.weight).flatten(0, 1)
        offsets = torch.arange(N_LAYOUT_VALUES, device=vectors.device) * N_SYMBOLS
        embeddings = nn.functional.embedding_bag(vectors + offsets, table, mode="sum")  # (v, h)
        settings = (embeddings.float() + self.tensor_roles.bias).to(storage_dtype(vectors.device))
        return nn.functional.embedding(choices.T, settings)

    def embed(self, inputs: LayoutInputs, distinct: Positions | Tensor) -> tuple[Tensor, Tensor]:
        """Join the nodes with configs, (c,) positions among the distinct ones.

        Returns:
            (m, c, h) nodes, and their aggregation for the first block, (m, c, h).
        """
        nodes, ids = self.nodes(inputs), inputs.config_ids
        varying = nodes[ids] + self.settings(inputs.vectors, inputs.choices(distinct))  # (k, c, h)
        x: Tensor = Broadcast.apply(nodes, ids, varying)
        if self.over_nodes:
            return x, self.blocks[0].aggregate(x, inputs.neighbours)
        return x, self.blocks[0].aggregate_split(nodes, varying, inputs.neighbours)

    def forward(self, inputs: LayoutInputs, distinct: Positions | Tensor) -> Tensor:
        """Score configs that see each other."""
        x, y = self.embed(inputs, distinct)  # (m, c, h) each
        for i, block in enumerate(self.blocks):
            if i > 0:
                y = block.aggregate(x, inputs.neighbours)
            x = self._drop_channels(block(x, y))
        return self.read_out(inputs, x, distinct)

    def _drop_channels(self, x: Tensor) -> Tensor:
        """Drop channels of nodes in training, the same ones for all configs of a step."""
        if not (self.training and self.config.dropout):
            return x
        return x * nn.functional.dropout(x.new_ones(len(x), 1, x.shape[2]), self.config.dropout)

    @without_autocast
    def read_out(self, inputs: LayoutInputs, x: Tensor, distinct: Positions | Tensor) -> Tensor:
        """Pool x, the (m, c, h) result of the last block, and score the configs, (c,) float32."""
        shares = x.new_zeros(2, len(x), dtype=torch.float32)
        shares[0] = 1 / len(x)
        shares[1].index_fill_(0, inputs.config_ids, 1 / max(1, len(inputs.config_ids)))
        if self.config.pool_by_bytes:
            shares = torch.cat([shares, inputs.bytes_share[None]])
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        ops = fused_ops.ops_for(x, self.config)
        if torch.is_inference_mode_enabled():
            sums, largest, *_ = ops.pool(x, Norm(*norm), shares, for_gradients=False)
        else:
            sums, largest = Pool.apply(x, *norm, shares, ops)
        pools = [sums[0], largest, *sums[1:]]
        if self.reads_statistics:
            statistics = inputs.statistics(distinct) / self.statistics_scale
            pools.append(self.statistics(statistics.clamp(-MAX_STATISTIC, MAX_STATISTIC)))
        scores: Tensor = self.head(torch.cat(pools, dim=-1)).squeeze(-1)
        return scores.float()

    def score_all(self, inputs: LayoutInputs, **limits: int) -> NDArray[np.float32]:
        """Score every config of a graph, (c,) float32, with the limits of `score_in_chunks`."""
        return score_in_chunks(self, inputs, **limits)
