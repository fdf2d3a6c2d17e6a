"""The TpuGraphs dataset's own layout baseline: a residual graph convolution without attention.

Equations and widths follow the dataset's repository (google-research-datasets/tpu_graphs,
baselines/layout: models.py, train_args.py, data.py) and its paper (arXiv:2308.13490). The code is
ours. The first layer joins features of nodes and configs, and every layer reads the configs.

There are three differences. This model reads our pruned graphs and our scaled node features, and
theirs reads random segments of whole graphs. A step samples configs uniformly, and theirs favours
fast configs. Training uses AdamW and our schedule, and theirs uses Adam at 1e-3 with early
stopping.
"""

from typing import ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F

from data.graphs.graph import N_LAYOUT_VALUES
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR
from models.config.networks import BaselineGcnConfig, LayoutGnnConfig
from models.layout.inputs import LayoutInputs, SparseProduct
from models.layout.network import N_OPCODES, LayoutNetwork, Positions

OPCODE_WIDTH = 32
LEAKY_SLOPE = 0.2
CONFIG_SCALE = 100.0
N_NUMERIC = MINOR_TO_MAJOR.start


def symmetric_product(edge_index: Tensor, n_nodes: int) -> SparseProduct:
    """Return the product with D^(-1/2) (A + Aᵀ + I) D^(-1/2), for D the diagonal of its row sums.

    It is the graph convolution of Kipf and Welling (2017).

    Args:
        edge_index: (e, 2) int64 edges, on the device of the product.
        n_nodes: Number of nodes.
    """
    consumer, producer = edge_index.cpu().numpy().T
    ones = np.ones(len(consumer), dtype=np.float32)
    matrix = sparse.csr_matrix((ones, (consumer, producer)), shape=(n_nodes, n_nodes))
    matrix = matrix + matrix.T + sparse.identity(n_nodes, dtype=np.float32, format="csr")
    root = sparse.diags(1 / np.sqrt(np.asarray(matrix.sum(axis=1)).ravel()), dtype=np.float32)
    return SparseProduct((root @ matrix @ root).tocsr()).to(edge_index.device)


class TwoLayers(nn.Module):
    """W' leaky(W x + b) + b'."""

    def __init__(self, in_width: int, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(in_width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.leaky_relu(self.inner(x), LEAKY_SLOPE))


class GcnLayer(nn.Module):
    """x + leaky(TwoLayers(Â [s, x])), for settings s and Â from `symmetric_product`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = TwoLayers(N_LAYOUT_VALUES + width, width)

    def forward(self, x: Tensor, settings: Tensor, product: SparseProduct) -> Tensor:
        """Apply the layer.

        Args:
            x: (n, c, h) nodes.
            settings: (n, c, 18) settings of the configs.
            product: Product with Â.

        Returns:
            (n, c, h).
        """
        y = self.layers(product(torch.cat([settings, x], dim=-1)))
        return x + F.leaky_relu(y, LEAKY_SLOPE)


class BaselineGcn(LayoutNetwork):
    """Score configs of one graph. A lower score means a faster config.

    Shapes: m kept nodes, c configs, k configurable nodes, h channels.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = BaselineGcnConfig
    config: BaselineGcnConfig

    def __init__(self, config: BaselineGcnConfig) -> None:
        super().__init__(config)
        hidden = config.hidden
        self.opcode = nn.Embedding(N_OPCODES, OPCODE_WIDTH)
        self.in_width = N_LAYOUT_VALUES + N_NUMERIC + VALUES_PER_TENSOR + OPCODE_WIDTH
        self.first = TwoLayers(self.in_width, hidden)
        self.layers = nn.ModuleList(GcnLayer(hidden) for _ in range(config.layers))
        self.head = nn.Sequential(
            nn.Linear(3 * hidden, hidden, bias=False),
            nn.LeakyReLU(LEAKY_SLOPE),
            nn.Linear(hidden, 1, bias=False),
        )

    def settings(self, inputs: LayoutInputs, choices: Tensor) -> Tensor:
        """Return layouts, (m, c, 18), as numbers 0..100, 0 at nodes that are not configurable.

        Args:
            inputs: Inputs of the graph.
            choices: (c, k) int64 rows of `inputs.vectors`.
        """
        values = inputs.vectors.float() * (CONFIG_SCALE / (N_SYMBOLS - 1))  # (v, 18)
        layouts = F.embedding(choices.T, values)  # (k, c, 18)
        zeros = layouts.new_zeros(len(inputs.opcode), len(choices), N_LAYOUT_VALUES)
        return zeros.index_copy(0, inputs.config_ids, layouts)

    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score some configs. Each score is independent of the other configs."""
        product = symmetric_product(inputs.neighbours.edge_index, len(inputs.opcode))
        layout = inputs.layout / (N_SYMBOLS - 1)
        parts = [inputs.node_feat[:, :N_NUMERIC], layout, self.opcode(inputs.opcode)]
        choices = inputs.choices(distinct)
        nodes = torch.cat(parts, dim=1)[:, None, :].expand(-1, len(choices), -1)  # (m, c, f)
        settings = self.settings(inputs, choices)  # (m, c, 18)
        x = F.leaky_relu(self.first(torch.cat([settings, nodes], dim=-1)), LEAKY_SLOPE)  # (m, c, h)
        for layer in self.layers:
            x = layer(x, settings, product)
        sums = x.sum(dim=0), x[inputs.config_ids].sum(dim=0)  # (c, h) each
        directions = [F.normalize(total, dim=-1) for total in sums]
        pooled = torch.cat([x.mean(dim=0), *directions], dim=-1)
        # Scores in half precision have ties.
        with torch.autocast(pooled.device.type, enabled=False):
            scores: Tensor = self.head(pooled.float()).squeeze(-1)
        return scores

    def chunk_for(self, inputs: LayoutInputs) -> int:
        """Return how many configs fit `inference_tensor_mib`."""
        bytes_per_config = len(inputs.opcode) * max(self.in_width, self.config.hidden) * 4
        return max(1, (self.config.inference_tensor_mib << 20) // bytes_per_config)
