"""A small ranker of choices, learned from what was measured: a cheap reward for pre-training.

GraphSAGE embeds the graph as in the policy; what is decided is added to the nodes that decide, and
passes over edges; the mean over nodes gives the score. No edge leads to what is decided of the
whole program: it adds a score by two layers, of the sum over those decisions beside the mean over
the other nodes. Trained on pairs of choices of one graph by RankNet's loss (Burges et al., 2005).

Tensors are (n, b, h) as in models/go/network.py.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.go.graph import DecisionGraph
from models.go.network import GraphEmbedding, PolicyConfig, passed_on, sage_blocks
from models.go.ppo import FAILED_RATIO, Choices, Tried
from models.layout.network import N_OPCODES
from models.training.losses import pairwise_logistic

LEARNING_RATE = 2e-3
BLOCKS = 2  # after the decisions
CHOICES_PER_STEP = 32


class ChoiceRanker(nn.Module):
    """Scores choices of a graph; lower = faster."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.embed = GraphEmbedding(config)
        self.blocks = sage_blocks(config.hidden, BLOCKS)
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, 1, bias=False)
        width = config.hidden
        self.whole = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1, bias=False)
        )

    def forward(self, graph: DecisionGraph, choices: Tensor) -> Tensor:
        """Score choices (b, g) int64; (b,)."""
        x = self.embed(graph)
        for task in graph.tasks:
            x = self.embed.tell(x, task, choices[:, task.genes])
        x = self.norm(passed_on(self.blocks, x, graph))
        scores: Tensor = self.head(x.mean(dim=0)).squeeze(-1)
        is_whole = graph.opcode >= N_OPCODES
        if is_whole.any():
            both = torch.cat([x[is_whole].sum(dim=0), x[~is_whole].mean(dim=0)], dim=-1)
            scores = scores + self.whole(both).squeeze(-1)
        return scores

    @torch.no_grad()
    def score(self, graph: DecisionGraph, choices: Choices) -> NDArray[np.float32]:
        """Score choices (b, g); (b,). A `Score` of models/go/rewards.py."""
        return self(graph, torch.from_numpy(choices)).numpy()


def fit_ranker(
    ranker: ChoiceRanker,
    graphs: Sequence[DecisionGraph],
    tried: Sequence[Tried],
    *,
    steps: int,
    seed: int,
) -> None:
    """Learn the order of choices that were measured; one graph's per step, all in turn."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(ranker.parameters(), lr=LEARNING_RATE)
    measured = [
        (graph, np.concatenate([t.choices for t in own]), np.concatenate([t.ratios for t in own]))
        for graph in graphs
        if (own := [t for t in tried if t.graph == graph.name])
    ]
    for step in range(steps):
        graph, choices, ratios = measured[step % len(measured)]
        rows = rng.permutation(len(choices))[:CHOICES_PER_STEP]
        runtime = torch.from_numpy(np.minimum(ratios[rows], FAILED_RATIO))
        loss = pairwise_logistic(ranker(graph, torch.from_numpy(choices[rows])), runtime)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
