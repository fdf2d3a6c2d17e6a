"""The dataset paper's tile baseline, for comparison: configs join every node before any message.

Each pair of a node and a config has a row x of its own, at first [node ; config]. A layer is

    x' = y / |y|,  y = leaky_relu(W [(A + Aᵀ) x ; x] + b),

with the edges' 0/1 matrix A; nodes are summed up, and an MLP gives the score ("EarlyJoinSAGE" of
the baselines in github.com/google-research-datasets/tpu_graphs, 3 layers of 64).

Nothing bends between the join and the first W, so the first layer falls apart: with W's columns
parted into those for nodes and for configs,

    W [(A + Aᵀ) x ; x] = P(node) + degree(node) · Q(config) + R(config).

P is computed once per node, Q and R once per config, and only their sum once per pair.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config.networks import EarlyFusionSageConfig, TileGnnConfig
from models.tile.inputs import TileBatch, TileInputs
from models.tile.network import TileNetwork


class EarlyFusionSage(TileNetwork):
    """Score the configs of many kernels, each by itself; lower = faster."""

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
        """Score all configs of all kernels of the batch; (g, r) float32, lower = faster."""
        edges = torch.cat([batch.edge_index, batch.edge_index.flip(0)], dim=1)  # both ways
        x = self.embed_nodes(batch)  # (n, w) of all kernels
        of_nodes = self.nodes(with_neighbours(x, edges))  # (n, h)
        for_neighbours, for_itself = self.configs(batch.config_feat).chunk(2, dim=2)  # (g, r, h)
        degree = x.new_zeros(len(x)).index_add_(0, edges[1], x.new_ones(edges.shape[1]))
        of_configs = for_itself[batch.node_kernel].addcmul(
            degree[:, None, None], for_neighbours[batch.node_kernel]
        )
        x = bent(of_nodes[:, None] + of_configs)  # (n, r, h)
        for layer in self.layers:
            x = bent(layer(with_neighbours(x, edges)))
        of_kernels = x.new_zeros(len(batch.runtime), *x.shape[1:])
        return self.scores_of(self.head, of_kernels.index_add_(0, batch.node_kernel, x))

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return how many configs keep their pairs with nodes within `inference_tensor_mib`."""
        pair_bytes = 4 * self.config.hidden * len(inputs.opcode)
        return max(1, (self.config.inference_tensor_mib << 20) // pair_bytes)


def with_neighbours(x: Tensor, edges: Tensor) -> Tensor:
    """Put the sum over a node's neighbours before it; (n, …, w) to (n, …, 2w), edges (2, 2e)."""
    start, end = edges
    around = torch.zeros_like(x).index_add_(0, end, x.index_select(0, start))
    return torch.cat([around, x], dim=-1)


def bent(x: Tensor) -> Tensor:
    """Return y / |y| with y = leaky_relu(x) along the last axis, in float32."""
    y = F.leaky_relu(x.float())
    return y * torch.rsqrt(y.square().sum(dim=-1, keepdim=True) + 1e-24)  # no length is 0
