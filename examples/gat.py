"""A layout model of one's own: graph attention (Veličković et al., 2018) in place of means.

    python -m pipeline run --data data/sample --recipe smoke --out runs/gat \\
        --set 'layout.models=["examples.gat:Gat"]' --set gat.training.steps=20

docs/models.md says what a model is given. Shapes: m kept nodes, e edges, c configs, k configurable
nodes, h channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from features.layout_codes import N_SYMBOLS
from models.config.networks import LayoutGnnConfig, Positive
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions


class GatConfig(LayoutGnnConfig):
    """The table [gat] of a recipe: what all layout networks have, and these."""

    hidden: Positive = 32
    layers: Positive = 2


class GatLayer(nn.Module):
    """Sum W x over what a node reads, weighted by softmax of leaky_relu(a x + b y)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.values = nn.Linear(width, width)
        self.reads, self.read = nn.Linear(width, 1), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Map (m, c, h) to (m, c, h); edges (2, e) int64, from the node that is read."""
        source, target = edges
        logits = F.leaky_relu(self.read(x)[source] + self.reads(x)[target], 0.2)  # (e, c, 1)
        weights = torch.exp(logits - logits.amax(dim=0)).float()
        nothing = torch.zeros_like(x, dtype=torch.float32)
        total = nothing[..., :1].index_add(0, target, weights)
        summed = nothing.index_add(0, target, weights * self.values(x)[source])
        return F.gelu(summed / total.clamp(min=1e-6))


class Gat(LayoutNetwork):
    """Embed nodes and configs, pass messages both ways along edges, and take the mean."""

    Config = GatConfig

    def __init__(self, config: GatConfig) -> None:
        super().__init__(config)
        self.opcode, self.layout = nn.Embedding(N_OPCODES, 16), nn.Embedding(N_SYMBOLS, 4)
        self.node = nn.Linear(N_NODE_FEATURES + 16, config.hidden)
        self.setting = nn.Linear(N_LAYOUT_VALUES * 4, config.hidden)
        self.layers = nn.ModuleList(GatLayer(config.hidden) for _ in range(config.layers))
        self.head = nn.Sequential(nn.LayerNorm(config.hidden), nn.Linear(config.hidden, 1))

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score the configs at `distinct`; (c,) float32, lower = faster."""
        nodes = self.node(torch.cat([inputs.node_feat, self.opcode(inputs.opcode)], dim=1))
        settings = self.setting(self.layout(inputs.symbols(distinct)).flatten(2))  # (c, k, h)
        x = nodes[:, None].repeat(1, len(distinct), 1)  # (m, c, h)
        x = x.index_add(0, inputs.config_ids, settings.transpose(0, 1).to(x.dtype))
        edges = inputs.neighbours.edge_index.T  # (2, e): consumer, then producer
        both = torch.cat([edges, edges.flip(0)], dim=1)
        for layer in self.layers:
            x = x + layer(x, both)
        return self.head(x.mean(dim=0)).squeeze(-1)
