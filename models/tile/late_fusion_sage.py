"""The tile GNN: a kernel's graph is encoded once, its configs join after pooling.

Kernels are small (about 40 nodes) and have many configs (about 1,800), so the graph is encoded
once per kernel and not once per config ("late fusion" or "late join" in the dataset paper); the
configs of a kernel then see each other through the same attention as in the layout GNN.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from models.config.networks import LateFusionSageConfig, TileGnnConfig
from models.tile.inputs import TileBatch
from models.tile.network import TileNetwork


class LateFusionSage(TileNetwork):
    """Score the configs of many kernels; lower = faster."""

    Config: ClassVar[type[TileGnnConfig]] = LateFusionSageConfig

    def __init__(self, config: LateFusionSageConfig) -> None:
        super().__init__(config)
        hidden = config.hidden
        self.node = nn.Linear(self.node_width, hidden)
        self.graph_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(config.blocks))
        self.graph_blocks = nn.ModuleList(MeanSage(hidden) for _ in range(config.blocks))
        self.kernel = nn.Linear(2 * hidden, hidden)
        self.columns = nn.Linear(self.n_columns, hidden)
        self.config_blocks = nn.ModuleList(
            RaggedConfigBlock(hidden, cross_config=config.cross_config)
            for _ in range(config.blocks)
        )
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 1, bias=False))

    def encode(self, batch: TileBatch) -> Tensor:
        """Encode each kernel's graph; (g, h)."""
        x = self.node(self.embed_nodes(batch))  # (n, h)
        for norm, convolution in zip(self.graph_norms, self.graph_blocks, strict=True):
            x = x + nn.functional.gelu(convolution(norm(x), batch.edge_index))
        mean = group_mean(x, batch.node_kernel, batch.n_kernels)
        largest = group_max(x, batch.node_kernel, batch.n_kernels)
        return self.kernel(torch.cat([mean, largest], dim=1))

    def forward(self, batch: TileBatch) -> Tensor:
        """Score all configs of all kernels of the batch; (c,) float32, lower = faster."""
        kernels = self.encode(batch)
        x = self.columns(batch.config_feat) + kernels[batch.config_kernel]  # (c, h)
        for block in self.config_blocks:
            x = block(x, batch.config_kernel, batch.n_kernels)
        return self.head(x).squeeze(-1)


class MeanSage(nn.Module):
    """W h + b over the mean h of what a node consumes, + W' of the node itself.

    GraphSAGE's layer (Hamilton et al., 2017). torch_geometric's SAGEConv is the reference in tests:
    the same, weights drawn alike, but its import takes longer than a small training.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.operands = nn.Linear(width, width)
        self.own = nn.Linear(width, width, bias=False)
        for layer in (self.operands, self.own):  # as SAGEConv does: a seed gives the same weights
            layer.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Map (n, h) to (n, h); edges (2, e) int64 from producer to consumer."""
        producer, consumer = edge_index
        mean = group_mean(x.index_select(0, producer), consumer, len(x))
        result: Tensor = self.operands(mean) + self.own(x)
        return result


class RaggedConfigBlock(nn.Module):
    """A residual layer per config, then attention across the configs of the same kernel."""

    def __init__(self, width: int, *, cross_config: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.log_temperature = nn.Parameter(torch.zeros(())) if cross_config else None
        self.project = nn.Linear(2 * width if cross_config else width, width)

    def forward(self, x: Tensor, kernel: Tensor, n_kernels: int) -> Tensor:
        """Map (c, h) to (c, h); `kernel` (c,) int64 says which kernel a config belongs to."""
        y = self.inner(x)
        if self.log_temperature is not None:
            weights = ragged_softmax(y * torch.exp(-self.log_temperature), kernel, n_kernels)
            y = torch.cat([y, y * weights], dim=1)
        return x + self.project(y)


def ragged_softmax(logits: Tensor, kernel: Tensor, n_kernels: int) -> Tensor:
    """Softmax over the configs of each kernel, times their number, so that weights average 1.

    Maps (c, h) to (c, h); `kernel` (c,) int64 says which of the g kernels a config belongs to.
    """
    highest = group_max(logits.detach(), kernel, n_kernels)
    exponents = torch.exp(logits - highest[kernel])
    return exponents / group_mean(exponents, kernel, n_kernels)[kernel]


def group_mean(x: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Average the rows (r, h) of each group, given by `group` (r,) int64; (g, h), 0 without any."""
    count = x.new_zeros(n_groups).scatter_add_(0, group, x.new_ones(len(x))).clamp(min=1)
    total = x.new_zeros(n_groups, x.shape[1]).scatter_add_(0, group[:, None].expand_as(x), x)
    return total / count[:, None]


def group_max(x: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Return the largest of the rows (r, h) of each group; (g, h), 0 without any."""
    largest = x.new_zeros(n_groups, x.shape[1])
    index = group[:, None].expand_as(x)
    return largest.scatter_reduce_(0, index, x, reduce="amax", include_self=False)
