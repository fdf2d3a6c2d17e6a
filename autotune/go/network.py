"""The policy of GO, which decides all knobs of a program at once, task after task.

"Transferable Graph Optimizers for ML Compilers" (Zhou et al., NeurIPS 2020) in three parts:

- GraphSAGE (Hamilton et al., 2017) embeds the nodes, here by the blocks of the layout GNN.
- Attention over nodes in topological order, with the segment-level recurrence of Transformer-XL
  (Dai et al., 2019). The nodes of segment s attend to H_s and to stop-gradient(H_s-1), without
  positions. All tasks share the layers, and task t reads the decisions of task t-1.
- Parameter superposition (Cheung et al., 2019): x in a layer becomes g(c) * x. c is the mean of the
  graph's embedding, so one set of weights serves different graphs.

This policy differs in one point: decisions also pass over edges, through one more GraphSAGE block
before the attention. Attention without positions cannot distinguish neighbours from other nodes.

Tensors are (n, b, h): n nodes, b settings, h channels. A task has d nodes with at most a options
each. A setting is (g,) int64 with an option of each of g knobs.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from autotune.measure.program import WHOLE_PROGRAM, Description
from common.settings import FrozenConfig
from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, Positive
from models.layout.cross_config_sage import SageBlock
from models.layout.inputs import SparseAggregation
from models.layout.network import N_OPCODES
from models.training.device import OnDevice

# Knobs of the whole program in one space.
MAX_PROGRAM_KNOBS = 64
# The logit of an option that a node lacks. It is finite, so that gradients are finite.
NO_OPTION = -1e9


@dataclass(frozen=True)
class DecisionTask(OnDevice):
    """The decisions of one space.

    Attributes:
        nodes: Positions of the deciding nodes in topological order, (d,) int64.
        n_options: Number of options of each node, (d,) int64.
    """

    name: str
    knobs: slice
    nodes: Tensor
    n_options: Tensor


@dataclass(frozen=True)
class DecisionGraph(OnDevice):
    """A graph and its tasks. Knobs of the whole program are separate nodes at the end.

    Attributes:
        node_feat: Scaled node features in topological order, (n, 140) float32.
        opcode: Opcodes, (n,) int64. A knob of the whole program has 256 + its number in its task.
    """

    name: str
    node_feat: Tensor
    opcode: Tensor
    neighbours: SparseAggregation
    tasks: tuple[DecisionTask, ...]
    n_knobs: int


def decision_graph(name: str, description: Description, scaler: NodeScaler) -> DecisionGraph:
    """Return the graph of a program. Each space is a task."""
    arrays = description.arrays
    opcode, edge_index = arrays["node_opcode"].astype(np.int64), arrays["edge_index"]
    features = scaler(arrays["node_feat"])
    features[:, MINOR_TO_MAJOR] = 0
    opcodes, tasks, n_nodes = [opcode], [], len(opcode)
    for space, place in description.slices.items():
        n_options, _, nodes = description.knobs[space]
        of_program = np.flatnonzero(nodes == WHOLE_PROGRAM)
        nodes = nodes.copy()
        nodes[of_program] = n_nodes + np.arange(len(of_program))
        opcodes.append(N_OPCODES + np.arange(len(of_program)))
        tasks.append(DecisionTask(space, place, *map(torch.from_numpy, (nodes, n_options))))
        n_nodes += len(of_program)
    no_features = np.zeros((n_nodes - len(opcode), N_NODE_FEATURES), np.float32)
    edges = torch.from_numpy(edge_index.reshape(-1, 2))
    return DecisionGraph(
        name=name,
        node_feat=torch.from_numpy(np.concatenate([features, no_features])),
        opcode=torch.from_numpy(np.concatenate(opcodes)),
        neighbours=SparseAggregation(edges, n_nodes, varying=torch.empty(0, dtype=torch.int64)),
        tasks=tuple(tasks),
        n_knobs=len(description.n_options),
    )


class PolicyConfig(FrozenConfig):
    """The size of a policy and its tasks.

    Attributes:
        tasks: Maximum number of options of a node, by task, in the order of the decisions.
        sage_blocks: Rounds of message passing that embed the graph.
        segment: Nodes of a segment. They also read the segment before.
    """

    tasks: dict[str, Annotated[int, Field(ge=2)]]
    hidden: Positive = 64
    sage_blocks: Positive = 2
    layers: Positive = 2
    heads: Positive = 4
    segment: Positive = 512


class SegmentAttention(nn.Module):
    """One layer: x + A(g * norm(x)), then x + F(g' * norm(x)). F is a network of two layers."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.hidden
        self.heads, self.segment = config.heads, config.segment
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.queries = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.join = nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: Nodes (n, b, h).
            gates: Factors of the two inputs, (2, h).
        """
        x = x + self.join(self.attend(self.norms[0](x) * gates[0]))
        return x + self.inner(self.norms[1](x) * gates[1])

    def attend(self, x: Tensor) -> Tensor:
        """Let each node read from its segment and the segment before.

        Args:
            x: Nodes (n, b, h).
        """
        parts = x.split(self.segment)
        before = [x[:0], *(part.detach() for part in parts[:-1])]
        windows = [torch.cat(pair) for pair in zip(before, parts, strict=True)]
        return torch.cat([self._attend(*pair) for pair in zip(parts, windows, strict=True)])

    def _attend(self, x: Tensor, context: Tensor) -> Tensor:
        keys, values = self.memory(context).chunk(2, dim=-1)
        heads = [
            y.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)  # (b, heads, s or m, h / heads)
            for y in (self.queries(x), keys, values)
        ]
        return F.scaled_dot_product_attention(*heads).permute(2, 0, 1, 3).flatten(2)


class GraphEmbedding(nn.Module):
    """GraphSAGE over the undecided nodes, and embeddings of the decisions."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.hidden
        self.opcode = nn.Embedding(N_OPCODES + MAX_PROGRAM_KNOBS, width)
        self.features = nn.Linear(N_NODE_FEATURES, width)
        self.blocks = sage_blocks(width, config.sage_blocks)
        self.decisions = nn.ModuleDict(
            {name: nn.Embedding(most, width) for name, most in config.tasks.items()}
        )

    def forward(self, graph: DecisionGraph) -> Tensor:
        """Return the embedded nodes, (n, 1, h)."""
        x = (self.opcode(graph.opcode) + self.features(graph.node_feat))[:, None]
        return pass_messages(self.blocks, x, graph)

    def add_decisions(self, x: Tensor, task: DecisionTask, settings: Tensor) -> Tensor:
        """Add the decisions of a task to its nodes.

        Args:
            x: Nodes (n, b or 1, h).
            settings: Options of its nodes, (b, d).

        Returns:
            Nodes (n, b, h).
        """
        embedding = self.decisions[task.name](settings.T)
        return x.expand(-1, len(settings), -1).index_add(0, task.nodes, embedding)


def sage_blocks(width: int, count: int) -> nn.ModuleList:
    """Return blocks of the layout GNN without cross-config attention."""
    sage = CrossConfigSageConfig(hidden=width, cross_config=False)
    return nn.ModuleList(SageBlock(sage) for _ in range(count))


def pass_messages(blocks: nn.ModuleList, x: Tensor, graph: DecisionGraph) -> Tensor:
    """Apply blocks of message passing to nodes (n, b, h)."""
    for block in blocks:
        assert isinstance(block, SageBlock)
        x = block(x, block.aggregate(x, graph.neighbours))
    return x


class Policy(nn.Module):
    """Network that gives settings of a graph their probabilities."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden
        self.embed = GraphEmbedding(config)
        self.graph_norm = nn.LayerNorm(width)
        self.gates = nn.Linear(width, (2 * config.layers + 2) * width)
        self.spread = sage_blocks(width, 1)
        self.layers = nn.ModuleList([SegmentAttention(config) for _ in range(config.layers)])
        self.head_norm = nn.LayerNorm(width)
        self.heads = nn.ModuleDict(
            {name: nn.Linear(width, most) for name, most in config.tasks.items()}
        )
        for weight in self.heads.parameters():
            # All options have the same probability at first.
            nn.init.zeros_(weight)

    def gates_of(self, x: Tensor) -> Tensor:
        """Return the gates of a graph, (2 + 2 layers, h). They are about 1.

        Args:
            x: Embedded nodes (n, 1, h).
        """
        context = self.graph_norm(x).mean(dim=(0, 1))
        return 2 * torch.sigmoid(self.gates(context)).view(-1, x.shape[-1])

    def forward(self, graph: DecisionGraph, settings: Tensor) -> Tensor:
        """Return the log-probability of each decision, (b, g).

        Args:
            settings: Options of all knobs, (b, g) int64.
        """
        x = self.embed(graph)
        gates = self.gates_of(x)
        chosen = []
        for task in graph.tasks:
            x = pass_messages(self.spread, x * gates[0], graph)
            for number, layer in enumerate(self.layers):
                x = layer(x, gates[2 + 2 * number :][:2])
            logits = self.heads[task.name](self.head_norm(x[task.nodes]) * gates[1])
            exists = torch.arange(logits.shape[-1], device=logits.device) < task.n_options[:, None]
            logits = logits.masked_fill(~exists[:, None], NO_OPTION)
            log_probs = logits.log_softmax(dim=-1).transpose(0, 1)  # (b or 1, d, a)
            options = settings[:, task.knobs]  # (b, d)
            option_logs = log_probs.expand(len(options), -1, -1)
            chosen.append(option_logs.gather(2, options[:, :, None]).squeeze(2))
            x = self.embed.add_decisions(x, task, options)
        return torch.cat(chosen, dim=1)
