"""The policy of GO for one kind of decision per node.

"Transferable Graph Optimizers for ML Compilers" (Zhou et al., NeurIPS 2020) in three parts:

- GraphSAGE (Hamilton et al., 2017) embeds the nodes, here by the blocks of the layout GNN.
- Attention over nodes in topological order, with the segment-level recurrence of Transformer-XL
  (Dai et al., 2019). The nodes of segment s attend to H_s and to stop-gradient(H_s-1), without
  positions.
- Parameter superposition (Cheung et al., 2019): x in a layer becomes g(c) * x. c is the mean of the
  graph's embedding, so one set of weights serves different graphs.

Here decisions have one task, so no task reads the decisions of another one.

n nodes, d deciding nodes, h channels.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from autotune.measure.program import Description
from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import SageBlock
from models.layout.inputs import SparseAggregation
from models.layout.network import N_OPCODES

WIDTH, N_BLOCKS, N_LAYERS, N_HEADS = 32, 2, 2, 4
# Nodes of a segment. They also read the segment before.
SEGMENT = 512


class DecisionGraph(NamedTuple):
    """A graph and its deciding nodes.

    Attributes:
        node_feat: Scaled node features in topological order, (n, 140) float32, without layouts.
        opcode: Opcodes, (n,) int64.
        nodes: Positions of the deciding nodes, (d,) int64.
    """

    node_feat: Tensor
    opcode: Tensor
    neighbours: SparseAggregation
    nodes: Tensor


def decision_graph(
    description: Description, nodes: NDArray[np.int64], scaler: NodeScaler
) -> DecisionGraph:
    """Return the graph of a program with some deciding nodes, (d,)."""
    arrays = description.arrays
    features = scaler(arrays["node_feat"])
    features[:, MINOR_TO_MAJOR] = 0
    edges = torch.from_numpy(arrays["edge_index"].reshape(-1, 2))
    return DecisionGraph(
        node_feat=torch.from_numpy(features),
        opcode=torch.from_numpy(arrays["node_opcode"].astype(np.int64)),
        neighbours=SparseAggregation(edges, len(features), torch.empty(0, dtype=torch.int64)),
        nodes=torch.from_numpy(nodes),
    )


class SegmentAttention(nn.Module):
    """One layer: x + A(g * norm(x)), then x + F(g' * norm(x)). F is a network of two layers."""

    def __init__(self, width: int = WIDTH, heads: int = N_HEADS, segment: int = SEGMENT) -> None:
        super().__init__()
        self.heads, self.segment = heads, segment
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.queries = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.join = nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """Apply the layer to nodes (n, h), with factors of the two inputs, (2, h)."""
        x = x + self.join(self.attend(self.norms[0](x) * gates[0]))
        return x + self.inner(self.norms[1](x) * gates[1])

    def attend(self, x: Tensor) -> Tensor:
        """Let each node (n, h) read from its segment and the segment before."""
        parts = x.split(self.segment)
        before = [x[:0], *(part.detach() for part in parts[:-1])]
        windows = [torch.cat(pair) for pair in zip(before, parts, strict=True)]
        return torch.cat([self._attend(*pair) for pair in zip(parts, windows, strict=True)])

    def _attend(self, x: Tensor, context: Tensor) -> Tensor:
        keys, values = self.memory(context).chunk(2, dim=-1)
        heads = [
            y.unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]  # (1, heads, s or m, h / heads)
            for y in (self.queries(x), keys, values)
        ]
        return F.scaled_dot_product_attention(*heads)[0].transpose(0, 1).flatten(1)


class Policy(nn.Module):
    """Network that gives each deciding node of a graph a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.opcode = nn.Embedding(N_OPCODES, WIDTH)
        self.features = nn.Linear(N_NODE_FEATURES, WIDTH)
        sage = CrossConfigSageConfig(hidden=WIDTH, cross_config=False)
        self.blocks = nn.ModuleList(SageBlock(sage) for _ in range(N_BLOCKS))
        self.graph_norm = nn.LayerNorm(WIDTH)
        self.gates = nn.Linear(WIDTH, (2 * N_LAYERS + 1) * WIDTH)
        self.layers = nn.ModuleList([SegmentAttention() for _ in range(N_LAYERS)])
        self.head_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1)
        # All decisions have the same probability at first.
        nn.init.zeros_(self.head.weight)

    def forward(self, graph: DecisionGraph) -> Tensor:
        """Return the logits, (d,)."""
        x = (self.opcode(graph.opcode) + self.features(graph.node_feat))[:, None]
        for block in self.blocks:
            assert isinstance(block, SageBlock)
            x = block(x, block.aggregate(x, graph.neighbours))
        x = x[:, 0]
        # The gates are about 1.
        gates = 2 * torch.sigmoid(self.gates(self.graph_norm(x).mean(dim=0))).view(-1, WIDTH)
        for number, layer in enumerate(self.layers):
            x = layer(x, gates[2 * number :][:2])
        logits: Tensor = self.head(self.head_norm(x[graph.nodes]) * gates[-1]).squeeze(1)
        return logits
