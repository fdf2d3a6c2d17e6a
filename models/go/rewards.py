"""How long choices run over a baseline: measured, or as a small ranker guesses.

The ranker learns from what was measured: a cheap reward for pre-training. GraphSAGE embeds the
graph as in the policy; what is decided is added to the nodes that decide, and passes over edges;
the mean over nodes gives the score. No edge leads to what is decided of the whole program: it adds
a score by two layers, of the sum over those decisions beside the mean over the other nodes. Trained
on pairs of choices of one graph by RankNet's loss (Burges et al., 2005).

b choices of g genes; tensors are (n, b, h) as in models/go/network.py.
"""

from collections.abc import Callable, Sequence
from math import ceil
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.go.graph import DecisionGraph
from models.go.network import GraphEmbedding, PolicyConfig, passed_on, sage_blocks
from models.go.ppo import FAILED_RATIO, Choices, Reward, Tried
from models.layout.network import N_OPCODES
from models.training.losses import pairwise_logistic

PROMISING = 0.25  # share of new choices, the fastest, that are measured again
AGAIN = 3  # rounds
LEARNING_RATE = 2e-3  # of a ranker
BLOCKS = 2  # after the decisions
CHOICES_PER_STEP = 32

# Runtime in ns of a config by its number, in a round, under its choice (g,); inf if it fails.
Visit = Callable[[int, int, NDArray[np.int64]], float]
# Scores (b,) of choices (b, g) of a graph, lower = faster.
Score = Callable[[DecisionGraph, Choices], NDArray[np.floating]]


class MeasuredReward:
    """Runtimes of one program's choices over its baseline's, in two stages.

    New choices are measured once, beside the baseline. The fastest quarter of them are mostly
    lucky: they are measured again in rounds with the baseline, and the median of those ratios
    alone counts. What was measured before is not measured again.

    Args:
        visit: as `Visitor.visit`; config 0 is the baseline, the others are numbered as they come.
        baseline: (g,).

    Attributes:
        ratios: by choice, in the order of their first visits; as many were compiled, and the
            baseline.
    """

    def __init__(self, visit: Visit, baseline: NDArray[np.int64]) -> None:
        self._visit, self._baseline = visit, baseline
        self._turn = -1
        self._numbers: dict[tuple[int, ...], int] = {tuple(baseline.tolist()): 0}
        self.ratios: dict[tuple[int, ...], float] = {tuple(baseline.tolist()): 1.0}

    def __call__(self, graph: DecisionGraph, choices: Choices) -> NDArray[np.float64]:
        """Return the ratios (b,) of choices (b, g), inf for those that fail."""
        rows = [tuple(row) for row in choices.tolist()]
        new = [row for row in dict.fromkeys(rows) if row not in self.ratios]
        if new:
            self.ratios |= self._round(new)
            ran = [row for row in new if np.isfinite(self.ratios[row])]
            promising = sorted(ran, key=self.ratios.__getitem__)[: ceil(PROMISING * len(ran))]
            rounds = [self._round(promising) for _ in range(AGAIN if promising else 0)]
            self.ratios |= {row: median(found[row] for found in rounds) for row in promising}
        return np.array([self.ratios[row] for row in rows])

    def _round(self, rows: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Visit the baseline, then choices; return their ratios."""
        self._turn += 1
        base_ns = self._visit(0, self._turn, self._baseline)
        found = {}
        for row in rows:
            number = self._numbers.setdefault(row, len(self._numbers))
            found[row] = self._visit(number, self._turn, np.array(row)) / base_ns
        return found


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
        """Score choices (b, g); (b,)."""
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


def ranked_reward(score: Score, baselines: dict[str, NDArray[np.int64]]) -> Reward:
    """Return a reward that a ranker guesses: exp((score - baseline's) / deviation).

    A ranker's scores have no unit: the deviation is that of the first choices of a graph.

    Args:
        baselines: (g,) by the graph's name.
    """
    deviations: dict[str, float] = {}

    def reward(graph: DecisionGraph, choices: Choices) -> NDArray[np.float64]:
        base, *scores = score(graph, np.concatenate([baselines[graph.name][None], choices]))
        deviation = deviations.setdefault(graph.name, max(float(np.std(scores)), 1e-9))
        return np.exp((np.array(scores, np.float64) - base) / deviation)

    return reward
