"""Greedy selection and the fast means that it asks for equal slow, obvious ways."""

from functools import partial

import numpy as np
import pytest

from common.metrics import kendall_tau
from ensembles.choice import choose
from ensembles.choice.choose import greedy_counts
from ensembles.choice.objectives import (
    Floats,
    ScoredGraphs,
    best_of_five,
    tau_judge,
    tile_judge,
)
from tests.ensembles.made_up import exact_judge, made_up, noisy

SEEDS, BAG = range(6), 12
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
    fast = tau_judge(graphs)(SOME, WEIGHTINGS)
    np.testing.assert_allclose(fast, exact_judge(graphs, kendall_tau)(SOME, WEIGHTINGS), atol=1e-6)


def test_sampled_pairs_estimate_mean_tau_without_bias() -> None:
    graphs = with_ties(1, 60)
    exact = exact_judge(graphs, kendall_tau)(SOME, WEIGHTINGS)
    draws = [tau_judge(graphs, n_pairs=500, seed=s)(SOME, WEIGHTINGS) for s in range(200)]
    assert np.std(draws, axis=0).max() < 1 / np.sqrt(300)
    np.testing.assert_allclose(np.mean(draws, axis=0), exact, atol=4 / np.sqrt(300 * 200))


@pytest.mark.parametrize("n_configs", [1, 3, 5, 30])
def test_tile_scores_of_short_kernels_are_exact(n_configs: int) -> None:
    graphs = with_ties(2, n_configs)
    fast = tile_judge(graphs)(SOME, WEIGHTINGS)
    np.testing.assert_allclose(fast, exact_judge(graphs, best_of_five)(SOME, WEIGHTINGS))


def test_tile_scores_by_a_short_list_are_near() -> None:
    graphs = noisy([1.0, 1.5, 2.0], n_graphs=40, n_configs=400, seed=3)
    every = range(len(graphs))
    fast = tile_judge(graphs)(every, WEIGHTINGS)
    exact = exact_judge(graphs, best_of_five)(every, WEIGHTINGS)
    np.testing.assert_allclose(fast, exact, atol=2e-3)


def mean_tau(graphs: ScoredGraphs, weights: Floats) -> float:
    return float(exact_judge(graphs, kendall_tau)(range(len(graphs)), weights[None])[0])


def slow_greedy(graphs: ScoredGraphs) -> list[int]:
    m, found = len(graphs.members), list[tuple[float, int, list[int]]]()
    bag: list[int] = []
    while len(bag) < BAG:
        options = [
            (mean_tau(graphs, np.bincount([*bag, j], minlength=m) / (len(bag) + 1)), j in bag, -j)
            for j in range(m)
        ]
        value, _, best = max((round(value, 9), known, j) for value, known, j in options)
        bag = [*bag, -best]
        found.append((value, -len(bag), bag))
    return np.bincount(max(found)[2], minlength=m).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_selection_equals_the_slow_reference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "MAX_SELECTED", BAG)
    graphs = noisy([0.8, 1.0, 1.5, np.inf], n_graphs=4, n_configs=12, seed=seed)
    objective = partial(tau_judge(graphs), range(4))
    assert greedy_counts(objective, 4).tolist() == slow_greedy(graphs)
