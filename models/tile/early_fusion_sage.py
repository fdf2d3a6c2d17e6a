"""The dataset paper's tile baseline, for comparison: configs join every node before any message.

Each pair of a node and a config has a row x, at first [node ; config]. A layer is

    x' = y / |y|,  y = leaky_relu(W [(A + Aᵀ) x ; x] + b),

with the edges' 0/1 matrix A. The sum over nodes goes through an MLP, which gives the score. This is
"EarlyJoinSAGE" of the baselines in github.com/google-research-datasets/tpu_graphs, with 3 layers of
64 channels.

The first layer is linear in nodes and configs, so it splits into parts. With separate columns of W
for nodes and for configs,

    W [(A + Aᵀ) x ; x] = P(node) + degree(node) · Q(config) + R(config).

P is computed once per node, Q and R once per config, and their sum once per pair.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config.networks import EarlyFusionSageConfig, TileGnnConfig
from models.tile.inputs import TileBatch, TileInputs
from models.tile.network import TileNetwork


class EarlyFusionSage(TileNetwork):
    """Score the configs of many kernels, each alone. A lower score means a faster config."""

    Config: ClassVar[type[TileGnnConfig]] = EarlyFusionSageConfig
    config: EarlyFusionSageConfig

    def __init__(self, config: EarlyFusionSageConfig) -> None:
        super().__init__(config)
        hidden = config.hidden
        self.nodes = nn.Linear(2 * self.node_width, hidden)  # P
        self.configs = nn.Linear(self.n_columns, 2 * hidden, bias=False)  # Q and R
        self.layers = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(config.layers - 1))
        self.head = nn.Sequential(
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(),
            nn.Linear(hidden, hidden),
            nn.LeakyReLU(),
            nn.Linear(hidden, 1, bias=False),
        )

    def forward(self, batch: TileBatch) -> Tensor:
        edges = torch.cat([batch.edge_index, batch.edge_index.flip(0)], dim=1)  # both ways
        x = self.embed_nodes(batch)  # (n, w) of all kernels
        of_nodes = self.nodes(with_neighbours(x, edges))  # (n, h)
        for_neighbours, for_itself = self.configs(batch.config_feat).chunk(2, dim=2)  # (g, r, h)
        degree = x.new_zeros(len(x)).index_add_(0, edges[1], x.new_ones(edges.shape[1]))
        of_configs = for_itself[batch.node_kernel].addcmul(
            degree[:, None, None], for_neighbours[batch.node_kernel]
        )
        x = normalised_relu(of_nodes[:, None] + of_configs)  # (n, r, h)
        for layer in self.layers:
            x = normalised_relu(layer(with_neighbours(x, edges)))
        of_kernels = x.new_zeros(len(batch.runtime), *x.shape[1:])
        return self.scores_of(self.head, of_kernels.index_add_(0, batch.node_kernel, x))

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return how many configs fit `inference_tensor_mib` with all pairs of nodes."""
        pair_bytes = 4 * self.config.hidden * len(inputs.opcode)
        return max(1, (self.config.inference_tensor_mib << 20) // pair_bytes)


def with_neighbours(x: Tensor, edges: Tensor) -> Tensor:
    """Join the sum over a node's neighbours with the node.

    Args:
        x: (n, …, w) nodes.
        edges: (2, 2e) edges in both directions.

    Returns:
        (n, …, 2w).
    """
    start, end = edges
    around = torch.zeros_like(x).index_add_(0, end, x.index_select(0, start))
    return torch.cat([around, x], dim=-1)


def normalised_relu(x: Tensor) -> Tensor:
    """Return y / |y| with y = leaky_relu(x) along the last axis, in float32."""
    y = F.leaky_relu(x.float())
    # The summand avoids a division by 0.
    return y * torch.rsqrt(y.square().sum(dim=-1, keepdim=True) + 1e-24)
