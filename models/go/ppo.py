"""PPO for a policy that decides a whole program in one step (Schulman et al., 2017).

The reward of a choice is -sqrt(runtime / baseline's runtime), as in GO (Zhou et al., NeurIPS 2020);
its advantage is what it has over the running mean of its graph's rewards, in standard deviations
of those that came first: of later ones it would make much of the noise in which choices differ
once a policy is sure. A choice is hundreds of decisions, whose joint probability moves by orders
of magnitude in one update: the ratio is clipped for each decision by itself.

b choices drawn at once, g decisions (genes) of a graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from common.settings import FrozenConfig
from models.config.networks import Positive, PositiveFloat, Weight
from models.go.graph import DecisionGraph
from models.go.network import Policy, drawn, given

FAILED_RATIO = 100.0  # so slow a choice counts that does not run: its reward is GO's, -10
KEPT = 0.7  # of a graph's mean reward, when new rewards come in

Choices = NDArray[np.int64]
# Runtimes of choices (b, g) of a graph over its baseline's, (b,) float64; inf for those that fail.
Reward = Callable[[DecisionGraph, Choices], NDArray[np.float64]]


class PpoConfig(FrozenConfig):
    """How a policy learns.

    Attributes:
        steps: rounds of drawing choices for one graph and learning from them.
        choices: drawn in each.
        epochs: updates of the weights from the same choices.
        clip: an update gains nothing from probabilities that change by more than this share.
        entropy: weight of the entropy of a decision, in nats, beside the reward.
        learning_rate: Adam's.
        max_norm: gradients are scaled down to this norm where theirs is larger.
    """

    steps: Positive = 100
    choices: Positive = 16
    epochs: Positive = 2
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    entropy: Weight = 0.05
    learning_rate: PositiveFloat = 1e-3
    max_norm: PositiveFloat = 1.0


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
    """Improve a policy by trying; pre-training on many graphs and fine-tuning on one are the same.

    Args:
        graphs: one is taken per step, all in turn.
        reward: measures, or guesses.

    Returns:
        What was tried, by step.
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
