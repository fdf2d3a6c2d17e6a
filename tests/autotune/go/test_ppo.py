"""That a policy learns by trying, also for unseen programs; rewards measured and guessed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autotune.go.network import (
    WHOLE_PROGRAM,
    Choose,
    Policy,
    PolicyConfig,
    decision_graph,
    drawn,
    likeliest,
)
from autotune.go.ppo import (
    AGAIN,
    ChoiceRanker,
    MeasuredReward,
    PpoConfig,
    Tried,
    clipped_objective,
    fit_ranker,
    rewards_of,
    train,
)
from autotune.measure.search import Visitor, open_journal
from autotune.measure.worker import Session
from common.metrics import kendall_tau
from models.training.device import CPU, torch_prepared
from tests.autotune.fakes import SpinSource
from tests.autotune.go.programs import UNSCALED, described, random_arrays, runtimes, two_tasks

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

        @torch.no_grad()
        def mean_cost(choose: Choose) -> float:
            decided = {g.name: policy(g, choose).choices.numpy() for g in unseen}
            return float(np.mean([runtimes(arrays[n], c).mean() for n, c in decided.items()]))

        chance = mean_cost(drawn(64, torch.Generator().manual_seed(1)))
        train(policy, seen, lambda g, c: runtimes(arrays[g.name], c), config, seed=0)
        learned = mean_cost(likeliest)
    assert chance == pytest.approx(2, abs=0.1)
    assert learned < 1.25


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


GRAPH = two_tasks("program", random_arrays(0, 4))
CHOICES = np.eye(8, dtype=np.int64)


class Machine:
    """Choice k of CHOICES takes 10 + k ns, the default 20; some visits are lucky, one fails."""

    def __init__(self) -> None:
        self.visits: list[tuple[int, int]] = []
        self.slow = 1.0

    def __call__(self, config: int, turn: int, choice: NDArray[np.int64]) -> float:
        self.visits.append((config, turn))
        if not choice.any():
            return 20 * self.slow
        number = int(choice.argmax())
        if number == 7:
            return np.inf
        return (10 + number) * self.slow * (0.5 if (number, turn) == (4, 0) else 1)


def test_what_is_promising_is_measured_again_beside_the_baseline_and_luck_does_not_count() -> None:
    machine = Machine()
    reward = MeasuredReward(machine, np.zeros(8, np.int64))
    ratios = reward(GRAPH, CHOICES)
    expected = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, np.inf]
    assert ratios.tolist() == pytest.approx(expected)
    screened, again = machine.visits[:9], machine.visits[9:]
    assert screened == [(config, 0) for config in range(9)]
    assert again == [(config, 1 + turn) for turn in range(AGAIN) for config in (0, 5, 1)]


def test_a_machine_that_slows_down_changes_no_ratio_and_nothing_is_measured_twice() -> None:
    machine = Machine()
    reward = MeasuredReward(machine, np.zeros(8, np.int64))
    first = reward(GRAPH, CHOICES[:3])
    machine.slow = 3.0
    n_visits = len(machine.visits)
    both = reward(GRAPH, CHOICES[[1, 5, 5, 1]])
    assert both.tolist() == pytest.approx([first[1], 0.75, 0.75, first[1]])
    assert len(machine.visits) == n_visits + 2 * (1 + AGAIN)  # choice 5 and the default
    assert reward(GRAPH, np.zeros((1, 8), np.int64)).tolist() == [1.0]
    assert len(reward.ratios) == 5


def test_choices_that_a_session_cannot_run_count_as_failed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal.jsonl", {"program": "spin"})
    with Session(SpinSource(refuses=3), timeout_s=20) as session:
        session.describe()
        visit = Visitor(session, journal, what="spin", total=20).visit
        reward = MeasuredReward(visit, np.zeros(2, np.int64))
        ratios = reward(GRAPH, np.array([[3, 0], [1, 0], [2, 3]]))
    assert ratios[0] == np.inf
    assert 1 < ratios[1] < ratios[2]
    assert len(journal.failed) == 1


def test_a_ranker_learns_the_order_of_choices_and_ranks_those_of_an_unseen_program() -> None:
    rng = np.random.default_rng(0)
    arrays = {f"program {seed}": random_arrays(seed) for seed in range(9)}
    graphs = [two_tasks(name, own) for name, own in arrays.items()]
    choices = [rng.integers(0, 2, (100, graph.n_genes)) for graph in graphs]
    tried = [
        Tried(graph.name, own, runtimes(arrays[graph.name], own))
        for graph, own in zip(graphs, choices, strict=True)
    ]
    with torch_prepared(threads=1, device=CPU, seed=0):
        ranker = ChoiceRanker(PolicyConfig(tasks=TASKS, hidden=32))
        fit_ranker(ranker, graphs[:8], tried, steps=200, seed=0)
        scores = ranker.score(graphs[8], choices[8])
    assert kendall_tau(scores, tried[8].ratios) > 0.5


def test_a_ranker_learns_what_a_whole_programs_decisions_do_together_and_to_which_programs() -> (
    None
):
    """In programs of low opcodes two options are fast if they agree, in others if they differ."""
    choices = np.indices((2, 3)).reshape(2, -1).T
    graphs, tried = [], []
    for seed in range(13):
        arrays, is_high = random_arrays(seed), seed % 2
        arrays["node_opcode"] = (arrays["node_opcode"] % 3 + 3 * is_high).astype(np.uint8)
        known = described(arrays, [WHOLE_PROGRAM] * 2, [2, 3], {"options": 2})
        graphs.append(decision_graph(f"program {seed}", known, UNSCALED))
        agree = choices[:, 0] == choices[:, 1] % 2
        tried.append(Tried(graphs[-1].name, choices, 1.0 + (agree == is_high)))
    with torch_prepared(threads=1, device=CPU, seed=0):
        ranker = ChoiceRanker(PolicyConfig(tasks={"options": 3}, hidden=32))
        fit_ranker(ranker, graphs[:11], tried, steps=200, seed=0)
        for graph, own in zip(graphs[11:], tried[11:], strict=True):
            scores = ranker.score(graph, choices)
            assert scores[own.ratios == 1].max() < scores[own.ratios == 2].min()
