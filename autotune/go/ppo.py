"""PPO for a policy that decides a whole program in one step (Schulman et al., 2017).

The reward of a setting is -sqrt(runtime / baseline's runtime), as in GO (Zhou et al., NeurIPS
2020). Its advantage is the difference from the running mean of its graph's rewards. The unit is the
standard deviation of the first rewards, because later deviations would amplify the noise of a
policy that has converged. A setting has hundreds of decisions, and their joint probability changes
by orders of magnitude in one update. So the ratio is clipped for each decision.

b settings, g decisions (knobs) of a graph. Tensors are as in autotune/go/network.py.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from autotune.go.network import (
    DecisionGraph,
    Policy,
    PolicyOutput,
    fixed_settings,
    sample_settings,
)
from common.settings import FrozenConfig
from data.hlo.choices import Choices
from models.config.networks import Positive, PositiveFloat, Weight

# A failed setting counts as 100 times slower than the default: its reward is GO's, -10.
MAX_RATIO = 100.0
# Share of the old mean in the running mean of a graph's rewards.
REWARD_DECAY = 0.7

# Returns runtimes of settings (b, g) over the baseline's, (b,) float64. A failed setting has inf.
Reward = Callable[[DecisionGraph, Choices], NDArray[np.float64]]


class PpoConfig(FrozenConfig):
    """Settings of PPO.

    Attributes:
        steps: Number of batches. Each is of one graph.
        clip: Maximum relative change of a probability in an update.
        entropy: Weight of a decision's entropy, in nats, added to the objective.
    """

    steps: Positive = 100
    settings: Positive = 16
    epochs: Positive = 2
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    entropy: Weight = 0.05
    learning_rate: PositiveFloat = 1e-3
    max_norm: PositiveFloat = 1.0


def rewards_of(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rewards of settings, (b,).

    Args:
        ratios: Runtimes over the baseline's, (b,). inf counts as `MAX_RATIO`.
    """
    return -np.sqrt(np.minimum(ratios, MAX_RATIO))


def clipped_objective(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """Return the mean over decisions of min(r A, clip(r, 1 - clip, 1 + clip) A).

    r is the new over the old probability of a decision, and A the advantage of its setting.

    Args:
        log_probs: New log-probabilities, (b, g).
        old_log_probs: Log-probabilities at the time of the draw, (b, g).
        advantages: Advantages of the settings, (b,).
        clip: Maximum relative change of a probability.
    """
    ratio = (log_probs - old_log_probs).exp()
    gain = advantages[:, None]
    return torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()


class PpoTrainer:
    """Improves a policy from the runtimes of the settings that the policy draws."""

    def __init__(self, policy: Policy, config: PpoConfig, *, seed: int) -> None:
        self._policy, self._config = policy, config
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=config.learning_rate)
        # The running mean and the first standard deviation of the rewards, by graph.
        self._rewards: dict[str, tuple[float, float]] = {}

    def draw(self, graph: DecisionGraph) -> PolicyOutput:
        """Return settings (b, g) that the policy draws for a graph, with their probabilities."""
        choose = sample_settings(self._config.settings, self._generator)
        with torch.no_grad():
            output: PolicyOutput = self._policy(graph, choose)
        return output

    def learn(self, graph: DecisionGraph, old: PolicyOutput, ratios: NDArray[np.float64]) -> None:
        """Update the policy.

        Args:
            graph: Graph that the settings were drawn for.
            old: Settings (b, g), as `draw` returned them.
            ratios: Runtime of each setting over the baseline's, (b,). inf means that it failed.
        """
        config, rewards = self._config, rewards_of(ratios)
        initial = rewards.mean(), max(rewards.std(), 1e-3)
        mean, scale = self._rewards.setdefault(graph.name, initial)
        advantages = torch.from_numpy((rewards - mean) / scale).float()
        self._rewards[graph.name] = REWARD_DECAY * mean + (1 - REWARD_DECAY) * rewards.mean(), scale
        for _ in range(config.epochs):
            new = self._policy(graph, fixed_settings(old.settings))
            gain = clipped_objective(new.log_probs, old.log_probs, advantages, config.clip)
            self._optimizer.zero_grad()
            (-gain - config.entropy * new.entropies.mean()).backward()
            clip_grad_norm_(self._policy.parameters(), config.max_norm)
            self._optimizer.step()


def improve_policy(
    policy: Policy,
    graphs: Sequence[DecisionGraph],
    reward: Reward,
    config: PpoConfig,
    *,
    seed: int,
) -> None:
    """Improve a policy on graphs in turn, one per step.

    Args:
        reward: Function that returns the runtimes of settings over the baseline's.
    """
    trainer = PpoTrainer(policy, config, seed=seed)
    for step in range(config.steps):
        graph = graphs[step % len(graphs)]
        old = trainer.draw(graph)
        trainer.learn(graph, old, reward(graph, old.settings.numpy()))
