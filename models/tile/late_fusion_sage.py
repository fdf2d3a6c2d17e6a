"""The tile GNN: a kernel's graph is encoded once, its configs join after pooling.

Kernels are small (about 40 nodes) and have many configs (about 1,800), so the graph is encoded
once per kernel and not once per config ("late fusion" or "late join" in the dataset paper); the
configs of a kernel then see each other through the same attention as in the layout GNN.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv, global_max_pool, global_mean_pool
from torch_geometric.utils import scatter

from models.config.networks import LateFusionSageConfig
from models.tile.inputs import TileBatch, n_config_columns
from models.tile.nodes import TileNodes


class LateFusionSage(TileNodes):
    """Score the configs of many kernels; lower = faster.

    Args:
        config: widths and depth.
    """

    def __init__(self, config: LateFusionSageConfig) -> None:
        super().__init__(config.opcode_width)
        hidden = config.hidden
        self.node = nn.Linear(self.node_width, hidden)
        self.graph_norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(config.blocks))
        self.graph_blocks = nn.ModuleList(SAGEConv(hidden, hidden) for _ in range(config.blocks))
        self.kernel = nn.Linear(2 * hidden, hidden)
        n_columns = n_config_columns(config)
        self.config = nn.Linear(n_columns, hidden)
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
        mean = global_mean_pool(x, batch.node_kernel, batch.n_kernels)
        largest = global_max_pool(x, batch.node_kernel, batch.n_kernels)
        return self.kernel(torch.cat([mean, largest], dim=1))

    def forward(self, batch: TileBatch) -> Tensor:
        """Score all configs of all kernels of the batch; (c,) float32, lower = faster."""
        kernels = self.encode(batch)
        x = self.config(batch.config_feat) + kernels[batch.config_kernel]  # (c, h)
        for block in self.config_blocks:
            x = block(x, batch.config_kernel, batch.n_kernels)
        return self.head(x).squeeze(-1)


class RaggedConfigBlock(nn.Module):
    """A residual layer per config, then attention across the configs of the same kernel.

    Args:
        width: h.
        cross_config: whether the configs of a kernel see each other.
    """

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

    Args:
        logits: (c, h).
        kernel: (c,) int64.
        n_kernels: g.
    """
    highest = scatter(logits.detach(), kernel, dim_size=n_kernels, reduce="max")
    exponents = torch.exp(logits - highest[kernel])
    return exponents / scatter(exponents, kernel, dim_size=n_kernels, reduce="mean")[kernel]
