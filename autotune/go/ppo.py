"""PPO for a policy that decides a whole program in one step (Schulman et al., 2017).

The reward of a choice is -sqrt(runtime / baseline's runtime), as in GO (Zhou et al., NeurIPS 2020);
its advantage is what it has over the running mean of its graph's rewards, in standard deviations
of those that came first: of later ones it would make much of the noise in which choices differ
once a policy is sure. A choice is hundreds of decisions, whose joint probability moves by orders
of magnitude in one update: the ratio is clipped for each decision by itself.

A reward is measured, or guessed by a small ranker that learned from what was measured: a cheap one
for pre-training. In it GraphSAGE embeds the graph as in the policy; what is decided is added to the
nodes that decide, and passes over edges; the mean over nodes gives the score. No edge leads to what
is decided of the whole program: that adds a score of its own.

b choices drawn at once, g decisions (genes) of a graph; tensors as in autotune/go/network.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from autotune.go.network import (
    DecisionGraph,
    GraphEmbedding,
    Policy,
    PolicyConfig,
    drawn,
    given,
    passed_on,
    sage_blocks,
)
from common.settings import FrozenConfig
from models.config.networks import Positive, PositiveFloat, Weight
from models.layout.network import N_OPCODES
from models.training.losses import pairwise_logistic

FAILED_RATIO = 100.0  # so slow a choice counts that does not run: its reward is GO's, -10
KEPT = 0.7  # of a graph's mean reward, when new rewards come in
PROMISING = 0.25  # share of new choices, the fastest, that are measured again
AGAIN = 3  # rounds
LEARNING_RATE = 2e-3  # of a ranker
BLOCKS = 2  # after the decisions
CHOICES_PER_STEP = 32

Choices = NDArray[np.int64]
# Runtimes of choices (b, g) of a graph over its baseline's, (b,) float64; inf for those that fail.
Reward = Callable[[DecisionGraph, Choices], NDArray[np.float64]]
# Runtime in ns of a config by its number, in a round, under its choice (g,); inf if it fails.
Visit = Callable[[int, int, NDArray[np.int64]], float]
# Scores (b,) of choices (b, g) of a graph, lower = faster.


class PpoConfig(FrozenConfig):
    """How a policy learns."""

    steps: Positive = 100  # rounds of drawing choices for one graph and learning from them
    choices: Positive = 16  # drawn in each
    epochs: Positive = 2  # updates of the weights from the same choices
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2  # of a probability's change in an update
    entropy: Weight = 0.05  # of a decision, in nats, beside the reward
    learning_rate: PositiveFloat = 1e-3
    max_norm: PositiveFloat = 1.0  # of gradients


@dataclass(frozen=True)
class Tried:
    """What a step drew for a graph, (b, g), and how long it ran over the baseline, (b,)."""

    graph: str
    choices: Choices
    ratios: NDArray[np.float64]


def rewards_of(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return -sqrt of runtimes over the baseline's, (b,); inf is read as FAILED_RATIO."""
    return -np.sqrt(np.minimum(ratios, FAILED_RATIO))


def clipped_objective(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """Return the mean over decisions (b, g) of min(r A, clip(r, 1 - clip, 1 + clip) A).

    r is the probability of a decision over the one it was drawn with, A its choice's advantage.
    """
    ratio = (log_probs - old_log_probs).exp()
    gain = advantages[:, None]
    return torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()


def train(
    policy: Policy,
    graphs: Sequence[DecisionGraph],
    reward: Reward,
    config: PpoConfig,
    *,
    seed: int,
) -> list[Tried]:
    """Improve a policy by trying on graphs in turn, one per step; return what was tried.

    Pre-training on many graphs and fine-tuning on one are the same.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
    known: dict[str, tuple[float, float]] = {}  # the mean and the scale of a graph's rewards
    found = []
    for step in range(config.steps):
        graph = graphs[step % len(graphs)]
        with torch.no_grad():
            old = policy(graph, drawn(config.choices, generator))
        tried = Tried(graph.name, old.choices.numpy(), reward(graph, old.choices.numpy()))
        found.append(tried)
        rewards = rewards_of(tried.ratios)
        mean, scale = known.setdefault(graph.name, (rewards.mean(), max(rewards.std(), 1e-3)))
        advantages = torch.from_numpy((rewards - mean) / scale).float()
        known[graph.name] = KEPT * mean + (1 - KEPT) * rewards.mean(), scale
        for _ in range(config.epochs):
            new = policy(graph, given(old.choices))
            gain = clipped_objective(new.log_probs, old.log_probs, advantages, config.clip)
            optimizer.zero_grad()
            (-gain - config.entropy * new.entropies.mean()).backward()
            clip_grad_norm_(policy.parameters(), config.max_norm)
            optimizer.step()
    return found


class MeasuredReward:
    """Runtimes of one program's choices over its baseline's, each measured at its first visit.

    The fastest quarter of what is new are mostly lucky: they are measured again in rounds with the
    baseline, and the median of those ratios alone counts.

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
        self._numbers = {tuple(baseline.tolist()): 0}
        self.ratios = {tuple(baseline.tolist()): 1.0}

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
    """Learn the order of choices, one graph's per step, by RankNet's loss (Burges et al., 2005)."""
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
