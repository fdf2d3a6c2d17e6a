"""Greedy selection and direct search equal slow, obvious ways to do the same."""

import itertools

import numpy as np
import pytest

from common.metrics import kendall_tau
from ensembles.choice.objectives import Floats, Metric, ScoredGraphs, best_of_five, tau_judge
from ensembles.choice.weights import PARTS, greedy_counts, search_weights, to_parts
from tests.ensembles.made_up import exact_judge, noisy

SEEDS = range(6)


def mean_tau(graphs: ScoredGraphs, weights: Floats) -> float:
    return float(exact_judge(graphs, kendall_tau)(range(len(graphs)))(weights[None])[0])


def slow_greedy(graphs: ScoredGraphs) -> list[int]:
    m = len(graphs.members)
    bag: list[int] = []
    while True:
        options = [
            (mean_tau(graphs, np.bincount([*bag, j], minlength=m) / (len(bag) + 1)), j in bag, -j)
            for j in range(m)
        ]
        value, _, best = max((round(value, 9), known, j) for value, known, j in options)
        now = mean_tau(graphs, np.bincount(bag, minlength=m) / len(bag)) if bag else -2.0
        if value <= now + 1e-6:
            return np.bincount(bag, minlength=m).tolist()
        bag.append(-best)


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_selection_equals_the_slow_reference(seed: int) -> None:
    graphs = noisy([0.8, 1.0, 1.5, np.inf], n_graphs=4, n_configs=12, seed=seed)
    objective = tau_judge(graphs)(range(4))
    assert greedy_counts(objective, 4).tolist() == slow_greedy(graphs)


@pytest.mark.parametrize(
    ("metric", "n_members"),
    [(metric, m) for metric in (kendall_tau, best_of_five) for m in (2, 3)],
)
def test_the_search_of_few_members_equals_brute_force(metric: Metric, n_members: int) -> None:
    for seed in SEEDS:
        graphs = noisy([1.0, 1.2, 2.0][:n_members], n_graphs=3, n_configs=15, seed=seed)
        objective = exact_judge(graphs, metric)(range(3))
        grid = [c for c in itertools.product(range(9), repeat=n_members) if sum(c) == 8]
        best = objective(np.asarray(grid) / 8).max()
        found = search_weights(objective, n_members, starts=(), parts=8)
        assert found.sum() == pytest.approx(1)
        assert objective(found[None])[0] == pytest.approx(best)


def test_the_search_among_many_members_is_never_worse_than_its_starts_and_near_the_best() -> None:
    for seed in SEEDS:
        graphs = noisy([1.0, 1.0, 1.5, 2.0, 2.0, np.inf], n_graphs=4, n_configs=15, seed=seed)
        objective = tau_judge(graphs)(range(4))
        starts = (np.ones(6), greedy_counts(objective, 6))
        found = search_weights(objective, 6, starts=starts)
        value = objective(found[None])[0]
        on_grid = np.asarray([to_parts(start) / PARTS for start in starts])
        assert value >= objective(on_grid).max() - 1e-6
        drawn = np.random.default_rng(seed).multinomial(PARTS, np.ones(6) / 6, size=4_000) / PARTS
        assert value >= objective(drawn).max() - 0.02


def test_rounding_to_parts_keeps_the_sum_and_what_is_whole() -> None:
    assert to_parts(np.asarray([3.0, 1.0])).tolist() == [12, 4]
    for weights in np.random.default_rng(0).dirichlet(np.ones(7), size=50):
        counts = to_parts(weights)
        assert counts.sum() == PARTS
        assert np.abs(counts - weights * PARTS).max() < 1
