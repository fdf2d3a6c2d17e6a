r"""Define a custom layout model with PyG: graph attention (Veličković et al., 2018).

    fast-or-slow run --data data/sample --recipe smoke --out runs/gat \\
        --set 'layout.models=["examples.gat:Gat"]' --set gat.training.steps=20

`GatNet` is plain PyG, and examples/train_with_pyg.py trains it without a recipe. `Gat` makes it a
model for recipes (docs/guides/add_a_model.md). n nodes, e edges, g graphs, c configs per graph,
k configurable nodes of all graphs, h channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, global_mean_pool

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from data.graphs.packing import N_SYMBOLS
from models.config.networks import LayoutGnnConfig, Positive
from models.layout.inputs import LayoutInputs
from models.layout.network import N_OPCODES, LayoutNetwork, Positions


class GatNet(nn.Module):
    """Network that embeds nodes and configs, and passes messages along edges in both directions."""

    def __init__(self, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.opcode, self.layout = nn.Embedding(N_OPCODES, 16), nn.Embedding(N_SYMBOLS, 4)
        self.node = nn.Linear(N_NODE_FEATURES + 16, hidden)
        self.setting = nn.Linear(N_LAYOUT_VALUES * 4, hidden)
        self.layers = nn.ModuleList(GATConv(hidden, hidden) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 1))

    def forward(self, data: Data) -> Tensor:
        """Score the configs of a batch.

        Returns:
            Scores, (g, c), lower = faster.
        """
        nodes = self.node(torch.cat([data.x, self.opcode(data.opcode)], dim=1))  # (n, h)
        settings = self.setting(self.layout(data.config_feat.long() + 1).flatten(2))  # (k, c, h)
        n_configs = settings.shape[1]
        x = nodes[:, None].repeat(1, n_configs, 1)  # (n, c, h)
        x = x.index_add(0, data.config_node_ids, settings.to(x.dtype)).flatten(0, 1)
        arcs = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
        configs = torch.arange(n_configs, device=arcs.device)
        # Each config has a copy of the graph, (2, 2e·c).
        edges = (arcs[..., None] * n_configs + configs).flatten(1)
        for layer in self.layers:
            x = x + F.gelu(layer(x, edges))
        x = x.view(len(nodes), -1)  # (n, c·h)
        return self.head(global_mean_pool(x, data.batch).unflatten(1, (n_configs, -1))).squeeze(-1)


class GatConfig(LayoutGnnConfig):
    """Table [gat] of a recipe, with the keys of all layout networks."""

    hidden: Positive = 32
    layers: Positive = 2


class Gat(LayoutNetwork):
    """The network `GatNet` as a model for recipes."""

    Config = GatConfig

    def __init__(self, config: GatConfig) -> None:
        super().__init__(config)
        self.net = GatNet(config.hidden, config.layers)

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score configs of one graph.

        Args:
            inputs: Graph with its configs.
            distinct: Positions of c distinct configs, (c,).

        Returns:
            Scores, (c,) float32, lower = faster.
        """
        return self.net(inputs.as_pyg(distinct)).squeeze(0)
