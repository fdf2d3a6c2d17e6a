"""The tile GNN: it encodes a kernel's graph once, and configs join after pooling.

Kernels are small (about 40 nodes) and have many configs (about 1,800). The dataset paper calls this
"late join". The attention across the configs of a kernel is the layout GNN's.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from models.config.networks import LateFusionSageConfig, TileGnnConfig
from models.tile.inputs import TileBatch
from models.tile.network import TileNetwork


class LateFusionSage(TileNetwork):
    """Score the configs of many kernels. A lower score means a faster config."""

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
            ConfigBlock(hidden, cross_config=config.cross_config) for _ in range(config.blocks)
        )
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 1, bias=False))

    def encode(self, batch: TileBatch) -> Tensor:
        """Encode each kernel's graph, (g, h) float32."""
        x = self.node(self.embed_nodes(batch)).float()  # (n, h)
        for norm, convolution in zip(self.graph_norms, self.graph_blocks, strict=True):
            x = x + nn.functional.gelu(convolution(norm(x), batch.edge_index, batch.n_operands))
        mean = group_mean(x, batch.node_kernel, batch.n_nodes)
        of_kernels = x.index_select(0, batch.node_places.flatten())
        largest = of_kernels.view(*batch.node_places.shape, -1).amax(dim=1)
        return self.kernel(torch.cat([mean, largest], dim=1)).float()

    def forward(self, batch: TileBatch) -> Tensor:
        x = self.columns(batch.config_feat) + self.encode(batch)[:, None]  # (g, r, h)
        is_config = (batch.runtime < torch.inf)[:, :, None]
        padding = is_config.to(x.dtype).log()  # 0 or -inf
        n_configs = is_config.sum(dim=1, keepdim=True)
        for block in self.config_blocks:
            x = block(x, padding, n_configs)
        return self.scores_of(self.head, x)


class MeanSage(nn.Module):
    """W h + b over the mean h of a node's operands, + W' of the node.

    This is GraphSAGE's layer (Hamilton et al., 2017). Tests compare it with torch_geometric's
    SAGEConv, which starts from the same weights. The import of SAGEConv takes longer than a small
    training.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.operands = nn.Linear(width, width)
        self.own = nn.Linear(width, width, bias=False)
        # SAGEConv also resets its layers, so a seed gives the same weights.
        for layer in (self.operands, self.own):
            layer.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, n_operands: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: (n, h) nodes.
            edge_index: (2, e) int64 edges from producer to consumer.
            n_operands: (n, 1) number of operands of each node.

        Returns:
            (n, h).
        """
        producer, consumer = edge_index
        mean = group_mean(x.index_select(0, producer), consumer, n_operands.clamp(min=1))
        result: Tensor = self.operands(mean) + self.own(x)
        return result


class ConfigBlock(nn.Module):
    """A residual layer per config, then attention across the configs of the same kernel."""

    def __init__(self, width: int, *, cross_config: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.log_temperature = nn.Parameter(torch.zeros(())) if cross_config else None
        self.project = nn.Linear(2 * width if cross_config else width, width)

    def forward(self, x: Tensor, padding: Tensor, n_configs: Tensor) -> Tensor:
        """Apply the block.

        Args:
            x: (g, r, h) configs.
            padding: (g, r, 1) 0 for configs, -inf for padding.
            n_configs: (g, 1, 1) number of configs of each kernel.

        Returns:
            (g, r, h).
        """
        y = self.inner(x)
        if self.log_temperature is not None:
            logits = torch.addcmul(padding, y.float(), torch.exp(-self.log_temperature))
            weights = torch.softmax(logits, dim=1) * n_configs  # mean 1 in each kernel
            y = torch.cat([y, y * weights], dim=2)
        return x + self.project(y)


def group_mean(x: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """Average the rows of each group.

    Args:
        x: (r, h) rows.
        group: (r,) int64 group of each row.
        sizes: (g, 1) sizes of the groups.

    Returns:
        (g, h) means.
    """
    return x.new_zeros(len(sizes), x.shape[1]).index_add_(0, group, x) / sizes
