"""What is chosen, that its figure is honest, and that fast means equal slow, obvious ways."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from common.metrics import kendall_tau, ranking_score
from ensembles.choice import choose
from ensembles.choice.choose import (
    GREEDY,
    RECIPE,
    Floats,
    Indices,
    Objective,
    ScoredGraphs,
    choose_blend,
    greedy_counts,
    objective_of,
    tau_objective,
    tile_objective,
)

SEEDS, BAG = range(6), 12
WEIGHTINGS = np.random.default_rng(1).dirichlet(np.ones(3), size=12)
SOME = np.array([4, 0, 2])
best_of_five = partial(ranking_score, "tile")


def made_up(
    raw: Sequence[Floats],
    runtimes: Sequence[Floats],
    *,
    per_family: int = 1,
    kind: str = "layout",
) -> ScoredGraphs:
    """Put graphs together: of each (c, m) scores, brought to 0..1, and (c,) runtimes."""
    scaled = []
    for scores in raw:
        span = np.ptp(scores, axis=0)
        scaled.append((scores - scores.min(axis=0)) / np.where(span > 0, span, 1))
    return ScoredGraphs(
        kind=kind,
        families=tuple(f"family{index // per_family}" for index in range(len(raw))),
        starts=np.cumsum([0, *map(len, raw)]),
        members=tuple(f"model{member}" for member in range(raw[0].shape[1])),
        scores=np.concatenate(scaled),
        runtime=np.concatenate(runtimes),
    )


def noisy(
    noise: Sequence[float],
    *,
    n_graphs: int,
    n_configs: int,
    seed: int,
    per_family: int = 1,
    kind: str = "layout",
) -> ScoredGraphs:
    """Make members that see the truth through noise of their own; infinite noise sees nothing."""
    rng = np.random.default_rng(seed)
    raw, runtimes = [], []
    for _ in range(n_graphs):
        truth = rng.normal(size=n_configs)
        seen = [
            rng.normal(size=n_configs) * (1 if np.isinf(level) else level)
            + (0 if np.isinf(level) else truth)
            for level in noise
        ]
        raw.append(np.stack(seen, axis=1))
        runtimes.append(np.exp(truth / 5))
    return made_up(raw, runtimes, per_family=per_family, kind=kind)


def folds_of(graphs: ScoredGraphs, n_folds: int) -> Indices:
    """Deal families out in turn; return the fold of each graph."""
    numbers = {family: i for i, family in enumerate(dict.fromkeys(graphs.families))}
    return np.array([numbers[family] % n_folds for family in graphs.families])


def exact_objective(graphs: ScoredGraphs, metric: Callable[..., float]) -> Objective:
    """Judge by any metric of all configs: slow, for few or small graphs."""

    def objective(chosen: Indices, weightings: Floats) -> Floats:
        rows = [graphs.rows()[index] for index in chosen]
        values = [
            [metric(graphs.scores[own] @ weights, graphs.runtime[own]) for own in rows]
            for weights in weightings
        ]
        return np.mean(values, axis=1)

    return objective


def with_ties(seed: int, n_configs: int) -> ScoredGraphs:
    """Graphs where many runtimes, and many scores of the first member, are equal."""
    rng = np.random.default_rng(seed)
    raw = [rng.normal(size=(n_configs, 3)) for _ in range(5)]
    for scores in raw:
        scores[:, 0] = scores[:, 0].round()
    return made_up(raw, [rng.integers(1, 6, n_configs).astype(float) for _ in raw])


def test_all_pairs_give_the_exact_mean_tau() -> None:
    graphs = with_ties(0, 20)
    fast = tau_objective(graphs)(SOME, WEIGHTINGS)
    np.testing.assert_allclose(
        fast, exact_objective(graphs, kendall_tau)(SOME, WEIGHTINGS), atol=1e-6
    )


@pytest.mark.parametrize("n_configs", [1, 3, 5, 30])
def test_tile_scores_of_short_kernels_are_exact(n_configs: int) -> None:
    graphs = with_ties(2, n_configs)
    fast = tile_objective(graphs)(SOME, WEIGHTINGS)
    np.testing.assert_allclose(fast, exact_objective(graphs, best_of_five)(SOME, WEIGHTINGS))


def mean_tau(graphs: ScoredGraphs, weights: Floats) -> float:
    return float(exact_objective(graphs, kendall_tau)(np.arange(len(graphs)), weights[None])[0])


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


@pytest.mark.parametrize(
    ("seed", "n_configs"),
    # Of few configs some bags are as good as others.
    [*((seed, 12) for seed in SEEDS), (12, 6), (13, 6), (23, 6), (6, 4), (12, 4)],
)
def test_greedy_selection_equals_the_slow_reference(
    seed: int, n_configs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "MAX_SELECTED", BAG)
    graphs = noisy([0.8, 1.0, 1.5, np.inf], n_graphs=4, n_configs=n_configs, seed=seed)
    objective = partial(tau_objective(graphs), np.arange(4))
    assert greedy_counts(objective, 4).tolist() == slow_greedy(graphs)


def choice_of(graphs: ScoredGraphs, recipe: Floats | None = None) -> dict[str, Any]:
    kept = graphs.scores[:, 0] if recipe is None else recipe
    return choose_blend(graphs, folds_of(graphs, 4), objective_of(graphs), kept)


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_members_that_complement_each_other_are_blended(kind: str) -> None:
    """Members that err independently are better together than the best alone."""
    sizes = {"layout": {"n_graphs": 16, "n_configs": 60, "per_family": 2, "seed": 0}}
    sizes["tile"] = {"n_graphs": 60, "n_configs": 100, "seed": 2}
    choice = choice_of(noisy([1.5, 1.5, np.inf], kind=kind, **sizes[kind]))
    assert choice["chosen"] == GREEDY
    assert min(choice["weights"][name] for name in ("model0", "model1")) > 0.2
    assert choice["weights"]["model2"] < 0.2
    assert choice["gain"] > choice["gain_ci99"][0] > 0
    assert choice["held_out_value"] > max(choice["member_values"].values())
    assert sum(choice["weights"].values()) == pytest.approx(1)


def test_value_of_fitted_weights_on_pure_noise_is_zero() -> None:
    """The value on held-out graphs is honest; that on the graphs of the fit is not."""
    held_out, naive = [], []
    for seed in range(12):
        graphs = noisy([np.inf] * 5, n_graphs=12, n_configs=20, seed=seed)
        choice = choice_of(graphs)
        held_out.append(choice["gain"] + choice["recipe_value"])
        objective = tau_objective(graphs)
        best = greedy_counts(partial(objective, np.arange(12)), 5)
        naive.append(objective(np.arange(12), best[None] / best.sum())[0])
    assert abs(np.mean(held_out)) < 3 * np.std(held_out) / np.sqrt(12)
    assert np.mean(naive) > 0.04


def test_blend_of_recipe_stays_unless_it_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = noisy([1.0, 1.0, 1.0], n_graphs=16, n_configs=60, seed=3)
    good, bad = graphs.scores.mean(axis=1), -graphs.scores[:, 0]
    kept = choice_of(graphs, good)
    assert (kept["chosen"], kept["weights"]) == (RECIPE, {})
    assert kept["held_out_value"] == kept["recipe_value"]
    replaced = choice_of(graphs, bad)
    assert replaced["chosen"] == GREEDY and replaced["gain"] > 1
    worse = good + np.random.default_rng(18).normal(0, 0.025, len(good))
    unsure = choice_of(graphs, worse)
    assert unsure["gain"] > 0 > unsure["gain_ci99"][0] and unsure["chosen"] == RECIPE
    monkeypatch.setattr(choose, "DECIDING_CONFIDENCE", 0.8)  # at which it would be beaten
    assert choice_of(graphs, worse)["chosen"] == GREEDY


def test_fold_is_judged_by_weights_that_have_not_seen_it() -> None:
    """Runtimes of a fold that are reversed change no weights that judge it."""
    graphs = noisy([1.0, 1.5, 2.0], n_graphs=9, n_configs=30, seed=6)
    folds, runtime, seen = folds_of(graphs, 3), graphs.runtime.copy(), []
    for index in np.flatnonzero(folds == 0):
        rows = graphs.rows()[index]
        runtime[rows] = runtime[rows].max() + 1 - runtime[rows]
    for own in (graphs, replace(graphs, runtime=runtime)):
        objective = tau_objective(own)
        counts = greedy_counts(partial(objective, np.flatnonzero(folds != 0)), 3)
        seen.append(counts.tolist())
    assert seen[0] == seen[1]
