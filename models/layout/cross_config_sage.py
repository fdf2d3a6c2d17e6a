"""The layout GNN: GraphSAGE over the pruned program with attention across configs.

Pruning, one embedding shared by node layouts and config layouts, channel attention and
cross-config attention follow the competition's winning solution (TGraph). Different here: tensors
are node-major, the first layer is split into a part per node and a part per config, norms are per
node and config, and the attention is exact over all configs however they are cut into chunks.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from features.layout_codes import N_SYMBOLS, N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import N_CONFIG_STATISTICS
from models.config.networks import CrossConfigSageConfig
from models.layout.inputs import LayoutInputs
from models.layout.layers import SageBlock
from models.layout.node_slices import node_slices

N_OPCODES = 256
MAX_STATISTIC = 10.0  # of what is usual among train configs

Positions = NDArray[np.int64]


class CrossConfigSage(nn.Module):
    """Score configs of one graph; lower = faster.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.

    Args:
        config: widths and depth.
    """

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__()
        self.config = config
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
