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

from typing import Any, ClassVar

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
        x = self.embed_nodes(batch)  # (n, w) of all kernels
        adjacency, degree = neighbours(batch.edge_index, len(x))
        of_nodes = self.nodes(torch.cat([_Around.apply(x, adjacency), x], dim=1))  # (n, h)
        for_neighbours, for_itself = self.configs(batch.config_feat).chunk(2, dim=2)  # (g, r, h)
        kernels = torch.arange(batch.n_kernels, device=x.device)
        is_of = (batch.node_kernel[:, None] == kernels).to(degree.dtype)
        joined = torch.cat([degree[:, None] * is_of, is_of], dim=1)  # (n, 2g)
        pairs = joined @ torch.cat([for_neighbours, for_itself]).flatten(1)
        x = _Bend.apply(pairs.view(len(x), -1, of_nodes.shape[1]) + of_nodes[:, None])  # (n, r, h)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            around = _Around.apply(x.flatten(1), adjacency).view(-1, x.shape[2])
            of_around, of_itself = layer.weight.chunk(2, dim=1)
            itself = F.linear(x.flatten(0, 1), of_itself, layer.bias)
            x = _Bend.apply(torch.addmm(itself, around, of_around.T).view_as(x))
        of_configs = x.new_zeros(batch.n_kernels, *x.shape[1:])
        return self.scores_of(self.head, of_configs.index_add_(0, batch.node_kernel, x))

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return how many configs keep their pairs with nodes within `inference_tensor_mib`."""
        pair_bytes = 4 * self.config.hidden * len(inputs.opcode)
        return max(1, (self.config.inference_tensor_mib << 20) // pair_bytes)


class _Bend(torch.autograd.Function):
    """y / |y| with y = leaky_relu(x) along the last axis, in float32; keeps the result alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = F.leaky_relu(x.float())
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp_(min=1e-12)
        result = y.div_(norm)
        ctx.save_for_backward(result, norm)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        result, norm = ctx.saved_tensors
        along = (grad * result).sum(dim=-1, keepdim=True)
        across = torch.addcmul(grad, result, along, value=-1).div_(norm)
        bent: Tensor = torch.ops.aten.leaky_relu_backward(across, result, 0.01, False)
        return bent


class _Around(torch.autograd.Function):
    """The product of a symmetric sparse matrix (n, n) and (n, k), in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.matrix = matrix
        with torch.autocast(x.device.type, enabled=False):  # no processor has sparse half precision
            return matrix @ x.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix @ grad, None


def neighbours(edge_index: Tensor, n_nodes: int) -> tuple[Tensor, Tensor]:
    """Return A + Aᵀ, (n, n) sparse: how many edges join two nodes; and the sum of its rows, (n,).

    An edge (2, e) that is there twice is one.
    """
    edges = (edge_index[0] * n_nodes + edge_index[1]).sort().values
    is_new = edges.diff(prepend=edges.new_full((1,), -1)).sign().float()
    producer, consumer = edges // n_nodes, edges % n_nodes
    row, order = torch.cat([producer, consumer]).sort(stable=True)
    counts = is_new.repeat(2)[order]
    starts = torch.searchsorted(row, torch.arange(n_nodes + 1, device=row.device), out_int32=True)
    column = torch.cat([consumer, producer])[order].int()
    size = n_nodes, n_nodes
    matrix = torch.sparse_csr_tensor(starts, column, counts, size, check_invariants=False)
    return matrix, counts.new_zeros(n_nodes).index_add_(0, row, counts)
