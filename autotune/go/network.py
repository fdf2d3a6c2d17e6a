"""The policy of GO: all decisions of a program at once, task after task.

"Transferable Graph Optimizers for ML Compilers" (Zhou et al., NeurIPS 2020) in three parts:

- GraphSAGE (Hamilton et al., 2017) embeds the nodes, here by the blocks of the layout GNN.
- Attention over nodes in topological order, with the segment-level recurrence of Transformer-XL
  (Dai et al., 2019): the nodes of segment s attend to H_s and to stop-gradient(H_s-1), without
  positions. Layers are the same for all tasks; that of task t sees what was decided in task t-1.
- Parameter superposition (Cheung et al., 2019): x in a layer becomes g(c) * x, where c is the mean
  of the graph's embedding, so that one set of weights serves unlike graphs.

Different here: decisions also pass over edges, through one more GraphSAGE block in front of the
attention, since attention without positions cannot tell a neighbour from any other node.

Tensors are (n, b, h): nodes, settings that are drawn or judged at once, channels. A task has d
nodes that decide, with at most a options each; a setting is (g,) int64 of g knobs, an option a
knob.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from autotune.measure.worker import Description
from common.settings import FrozenConfig
from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, Positive
from models.layout.cross_config_sage import SageBlock
from models.layout.inputs import SparseAggregation
from models.layout.network import N_OPCODES
from models.training.device import OnDevice

WHOLE_PROGRAM = -1  # given for the node of a knob that is of none
MAX_PROGRAM_KNOBS = 64  # of one space
NO_OPTION = -1e9  # the logit of an option that a node has not; finite, so that gradients are


@dataclass(frozen=True)
class Task(OnDevice):
    """Decisions of one kind."""

    name: str
    knobs: slice  # of a setting
    nodes: Tensor  # (d,) int64 positions in topological order
    n_options: Tensor  # (d,) int64


@dataclass(frozen=True)
class DecisionGraph(OnDevice):
    """A graph and its tasks; each decision of the whole program is a node of its own, the last."""

    name: str
    node_feat: Tensor  # (n, 140) float32 scaled, in topological order as all that follows
    opcode: Tensor  # (n,) int64; of a whole program's knob, 256 + its number within its task
    neighbours: SparseAggregation
    tasks: tuple[Task, ...]  # in the order in which they are decided
    n_knobs: int


def decision_graph(name: str, description: Description, scaler: NodeScaler) -> DecisionGraph:
    """Scale the graph of a described subject, operands first; each space of decisions is a task."""
    arrays, of_knobs = description.arrays, description.nodes
    assert of_knobs is not None
    opcode, edge_index = arrays["node_opcode"].astype(np.int64), arrays["edge_index"]
    scaled = scaler(arrays["node_feat"])
    scaled[:, MINOR_TO_MAJOR] = 0
    opcodes, tasks, start, n_nodes = [opcode], [], 0, len(opcode)
    for space, n_knobs in description.spaces.items():
        knobs = slice(start, start + n_knobs)
        nodes = of_knobs[knobs].copy()
        own = np.flatnonzero(nodes == WHOLE_PROGRAM)
        nodes[own] = n_nodes + np.arange(len(own))
        opcodes.append(N_OPCODES + np.arange(len(own)))
        given = torch.from_numpy(nodes), torch.from_numpy(description.n_options[knobs])
        tasks.append(Task(space, knobs, *given))
        start, n_nodes = start + n_knobs, n_nodes + len(own)
    none = np.zeros((n_nodes - len(opcode), N_NODE_FEATURES), np.float32)
    edges = torch.from_numpy(edge_index.reshape(-1, 2))
    return DecisionGraph(
        name=name,
        node_feat=torch.from_numpy(np.concatenate([scaled, none])),
        opcode=torch.from_numpy(np.concatenate(opcodes)),
        neighbours=SparseAggregation(edges, n_nodes, varying=torch.empty(0, dtype=torch.int64)),
        tasks=tuple(tasks),
        n_knobs=start,
    )


class PolicyConfig(FrozenConfig):
    """How large a policy is, and what it decides."""

    tasks: dict[str, Annotated[int, Field(ge=2)]]  # the most options of a node; in this order
    hidden: Positive = 64  # channels of a node
    sage_blocks: Positive = 2  # rounds of message passing that embed the graph
    layers: Positive = 2  # of attention, in each task
    heads: Positive = 4  # side by side, of hidden / heads channels each
    segment: Positive = 512  # nodes, which also see the segment before their own


# From a task and the log-probabilities (b or 1, d, a) of its options to settings (b, d) int64.
Choose = Callable[[Task, Tensor], Tensor]


class Decided(NamedTuple):
    """Choices (b, g) int64 with the log-probability and the entropy of each decision, (b, g)."""

    settings: Tensor
    log_probs: Tensor
    entropies: Tensor


class SegmentAttention(nn.Module):
    """One layer: x + A(g * norm(x)), then x + F(g' * norm(x)), with F a network of two layers."""

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
        """Map (n, b, h) to (n, b, h); gates (2, h)."""
        x = x + self.join(self.attend(self.norms[0](x) * gates[0]))
        return x + self.inner(self.norms[1](x) * gates[1])

    def attend(self, x: Tensor) -> Tensor:
        """Let each node read from its segment and the one before; (n, b, h) to (n, b, h)."""
        parts = x.split(self.segment)
        before = [x[:0], *(part.detach() for part in parts[:-1])]
        pairs = zip(before, parts, strict=True)
        return torch.cat([self._attend(part, torch.cat([seen, part])) for seen, part in pairs])

    def _attend(self, own: Tensor, seen: Tensor) -> Tensor:
        keys, values = self.memory(seen).chunk(2, dim=-1)
        heads = [
            y.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)  # (b, heads, s or m, h / heads)
            for y in (self.queries(own), keys, values)
        ]
        return F.scaled_dot_product_attention(*heads).permute(2, 0, 1, 3).flatten(2)


class GraphEmbedding(nn.Module):
    """GraphSAGE over the nodes as they are before any decision; and what decisions add to them."""

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
        """Return the nodes, (n, 1, h)."""
        x = (self.opcode(graph.opcode) + self.features(graph.node_feat))[:, None]
        return passed_on(self.blocks, x, graph)

    def tell(self, x: Tensor, task: Task, settings: Tensor) -> Tensor:
        """Add the settings (b, d) of a task to (n, b or 1, h); (n, b, h)."""
        embedding = self.decisions[task.name](settings.T)
        return x.expand(-1, len(settings), -1).index_add(0, task.nodes, embedding)


def sage_blocks(width: int, count: int) -> nn.ModuleList:
    """Return blocks of the layout GNN that see each setting by itself."""
    sage = CrossConfigSageConfig(hidden=width, cross_config=False)
    return nn.ModuleList(SageBlock(sage) for _ in range(count))


def passed_on(blocks: nn.ModuleList, x: Tensor, graph: DecisionGraph) -> Tensor:
    """Take (n, b, h) through blocks of message passing."""
    for block in blocks:
        assert isinstance(block, SageBlock)
        x = block(x, block.aggregate(x, graph.neighbours))
    return x


class Policy(nn.Module):
    """Decides for a graph; `forward` says how likely each setting is."""

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
            nn.init.zeros_(weight)  # all options are alike at first

    def gates_of(self, x: Tensor) -> Tensor:
        """Return what a graph of nodes (n, 1, h) gates, (2 + 2 layers, h); about 1."""
        context = self.graph_norm(x).mean(dim=(0, 1))
        return 2 * torch.sigmoid(self.gates(context)).view(-1, x.shape[-1])

    def forward(self, graph: DecisionGraph, choose: Choose) -> Decided:
        """Decide task after task; see `drawn`, `likeliest` and `given` for what chooses."""
        x = self.embed(graph)
        gates = self.gates_of(x)
        found = []
        for task in graph.tasks:
            x = passed_on(self.spread, x * gates[0], graph)
            for number, layer in enumerate(self.layers):
                x = layer(x, gates[2 + 2 * number :][:2])
            logits = self.heads[task.name](self.head_norm(x[task.nodes]) * gates[1])
            exists = torch.arange(logits.shape[-1], device=logits.device) < task.n_options[:, None]
            logits = logits.masked_fill(~exists[:, None], NO_OPTION)
            log_probs = logits.log_softmax(dim=-1).transpose(0, 1)  # (b or 1, d, a)
            settings = choose(task, log_probs)  # (b, d)
            every = log_probs.expand(len(settings), -1, -1)
            taken = every.gather(2, settings[:, :, None]).squeeze(2)
            found.append(Decided(settings, taken, -(every.exp() * every).sum(dim=2)))
            x = self.embed.tell(x, task, settings)
        return Decided(*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)))


def drawn(n_choices: int, generator: torch.Generator) -> Choose:
    """Draw settings as likely as the policy says."""

    def choose(task: Task, log_probs: Tensor) -> Tensor:
        every = log_probs.expand(n_choices, -1, -1)
        noise = torch.empty_like(every).exponential_(generator=generator)
        return (every - noise.log()).argmax(dim=2)  # Gumbel's way

    return choose


def likeliest(task: Task, log_probs: Tensor) -> Tensor:
    """Take the likeliest option of each node; one setting."""
    return log_probs[:1].argmax(dim=2)


def given(settings: Tensor) -> Choose:
    """Judge settings (b, g) that were made before."""
    return lambda task, log_probs: settings[:, task.knobs]
