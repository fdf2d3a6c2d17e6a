"""The search for weights and the fast means that it asks for equal slow, obvious ways."""

import itertools

import numpy as np
import pytest

from common.metrics import kendall_tau
from ensembles.choice.objectives import (
    Floats,
    Metric,
    ScoredGraphs,
    best_of_five,
    tau_judge,
    tile_judge,
)
from ensembles.choice.weights import PARTS, greedy_counts, search_weights, to_parts
from tests.ensembles.made_up import exact_judge, made_up, noisy

SEEDS = range(6)
WEIGHTINGS = np.random.default_rng(1).dirichlet(np.ones(3), size=12)
SOME = [4, 0, 2]


def with_ties(seed: int, n_configs: int) -> ScoredGraphs:
    """Graphs where many runtimes, and many scores of the first member, are equal."""
    rng = np.random.default_rng(seed)
    raw = [rng.normal(size=(n_configs, 3)) for _ in range(5)]
    for scores in raw:
        scores[:, 0] = scores[:, 0].round()
    return made_up(raw, [rng.integers(1, 6, n_configs).astype(float) for _ in raw])


def test_all_pairs_give_the_exact_mean_tau() -> None:
    graphs = with_ties(0, 20)
    fast = tau_judge(graphs)(SOME)(WEIGHTINGS)
    np.testing.assert_allclose(fast, exact_judge(graphs, kendall_tau)(SOME)(WEIGHTINGS), atol=1e-6)


def test_sampled_pairs_estimate_mean_tau_without_bias() -> None:
    graphs = with_ties(1, 60)
    exact = exact_judge(graphs, kendall_tau)(SOME)(WEIGHTINGS)
    draws = [tau_judge(graphs, n_pairs=500, seed=s)(SOME)(WEIGHTINGS) for s in range(200)]
    assert np.std(draws, axis=0).max() < 1 / np.sqrt(300)
    np.testing.assert_allclose(np.mean(draws, axis=0), exact, atol=4 / np.sqrt(300 * 200))


@pytest.mark.parametrize("n_configs", [1, 3, 5, 30])
def test_tile_scores_of_short_kernels_are_exact(n_configs: int) -> None:
    graphs = with_ties(2, n_configs)
    fast = tile_judge(graphs)(SOME)(WEIGHTINGS)
    np.testing.assert_allclose(fast, exact_judge(graphs, best_of_five)(SOME)(WEIGHTINGS))


def test_tile_scores_by_a_short_list_are_near() -> None:
    graphs = noisy([1.0, 1.5, 2.0], n_graphs=40, n_configs=400, seed=3)
    every = range(len(graphs))
    fast = tile_judge(graphs)(every)(WEIGHTINGS)
    exact = exact_judge(graphs, best_of_five)(every)(WEIGHTINGS)
    np.testing.assert_allclose(fast, exact, atol=2e-3)


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
