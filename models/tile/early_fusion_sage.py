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

from collections.abc import Iterator
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
        """Score all configs of all kernels of the batch; (c,) float32, lower = faster."""
        return self.head(torch.cat(list(self.encode(batch)))).squeeze(-1)

    def encode(self, batch: TileBatch) -> Iterator[Tensor]:
        """Yield each kernel's configs, (c, h), from its pairs alone: kernels differ in n and c."""
        nodes = self.embed_nodes(batch)  # (n, w) of all kernels, as `configs`
        configs = self.configs(batch.config_feat).split(batch.n_configs)
        for adjacency, x, of_configs in zip(
            adjacencies(batch), nodes.split(batch.n_nodes), configs, strict=True
        ):
            of_nodes = self.nodes(torch.cat([adjacency @ x, x], dim=1))  # (n, h)
            for_neighbours, for_itself = of_configs.chunk(2, dim=1)  # (c, h) each
            pairs = torch.addcmul(
                of_nodes[:, None] + for_itself, adjacency.sum(dim=1)[:, None, None], for_neighbours
            )
            yield self._over_layers(pairs, adjacency).sum(dim=0)

    def _over_layers(self, pairs: Tensor, adjacency: Tensor) -> Tensor:
        """Bend what the first layer gives, (n, c, h), and apply the others."""
        x = _bend(pairs)
        for layer in self.layers:
            around = (adjacency @ x.flatten(1)).view_as(x)
            x = _bend(layer(torch.cat([around, x], dim=-1)))
        return x

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return how many configs keep their pairs with nodes within `inference_tensor_mib`."""
        pair_bytes = 4 * self.config.hidden * len(inputs.opcode)
        return max(1, (self.config.inference_tensor_mib << 20) // pair_bytes)


def adjacencies(batch: TileBatch) -> Iterator[Tensor]:
    """Yield each kernel's (n, n) float32 matrix A + Aᵀ: how many edges join two of its nodes."""
    start = 0
    for n, edges in zip(batch.n_nodes, batch.edge_index.split(batch.n_edges, dim=1), strict=True):
        matrix = torch.zeros(n, n, device=edges.device)
        matrix[tuple(edges - start)] = 1
        yield matrix + matrix.T
        start += n


def _bend(x: Tensor) -> Tensor:
    return F.normalize(F.leaky_relu(x), dim=-1)
