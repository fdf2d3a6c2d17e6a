"""That a policy learns by trying, and what it learned holds for programs it has not seen."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from models.go.graph import DecisionGraph
from models.go.network import Choose, Policy, PolicyConfig, drawn, likeliest
from models.go.ppo import PpoConfig, clipped_objective, rewards_of, train
from models.training.device import CPU, torch_prepared
from tests.models.go.programs import Arrays, random_arrays, runtimes, two_tasks

TASKS = {"first": 2, "second": 2}


def test_the_reward_is_the_root_of_the_ratio_and_a_failure_costs_ten() -> None:
    assert rewards_of(np.array([1.0, 4.0, 0.25, 1e9, np.inf])).tolist() == [-1, -2, -0.5, -10, -10]


def test_the_objective_gains_nothing_from_probabilities_beyond_the_clip() -> None:
    before = np.array([[0.5, 0.2], [0.5, 0.4]])
    now = np.array([[0.7, 0.22], [0.3, 0.6]])
    advantages = np.array([1.0, -2.0])
    total = 0.0
    for choice, advantage in enumerate(advantages):
        for one, other in zip(now[choice], before[choice], strict=True):
            ratio = one / other
            total += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    given = [torch.from_numpy(np.log(p)) for p in (now, before)]
    found = clipped_objective(*given, torch.from_numpy(advantages), 0.2)
    assert found.item() == pytest.approx(total / 4)


def test_what_pays_by_opcode_and_by_a_neighbours_decision_is_learned_for_unseen_programs() -> None:
    arrays = {f"program {seed}": random_arrays(seed) for seed in range(12)}
    graphs = [two_tasks(name, own) for name, own in arrays.items()]
    seen, unseen = graphs[:8], graphs[8:]
    config = PpoConfig(steps=160)
    with torch_prepared(threads=1, device=CPU, seed=0):
        policy = Policy(PolicyConfig(tasks=TASKS, hidden=32))
        draw = drawn(64, torch.Generator().manual_seed(1))
        chance = _mean_cost(policy, unseen, arrays, draw)
        train(policy, seen, lambda g, c: runtimes(arrays[g.name], c), config, seed=0)
        learned = _mean_cost(policy, unseen, arrays, likeliest)
    assert chance == pytest.approx(2, abs=0.1)
    assert learned < 1.25


def _mean_cost(
    policy: Policy, graphs: list[DecisionGraph], arrays: Mapping[str, Arrays], choose: Choose
) -> float:
    with torch.no_grad():
        decided = [policy(graph, choose).choices.numpy() for graph in graphs]
    pairs = zip(graphs, decided, strict=True)
    return float(np.mean([runtimes(arrays[g.name], choices).mean() for g, choices in pairs]))


def test_the_same_seed_tries_the_same() -> None:
    arrays = random_arrays(0)
    tried = []
    for _ in range(2):
        with torch_prepared(threads=1, device=CPU, seed=0):
            policy = Policy(PolicyConfig(tasks=TASKS, hidden=16, heads=2))
            config = PpoConfig(steps=3, choices=4)
            graph = two_tasks("one", arrays)
            tried.append(train(policy, [graph], lambda _, c: runtimes(arrays, c), config, seed=0))
    for one, two in zip(*tried, strict=True):
        assert np.array_equal(one.choices, two.choices)
        assert np.array_equal(one.ratios, two.ratios)
    assert tried[0][0].choices.shape == (4, 48)
