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
    BEST_MEMBER,
    GREEDY,
    RECIPE,
    Floats,
    Indices,
    NestedCrossValidation,
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


def choice_of(graphs: ScoredGraphs, *, recipe: Floats | None = None) -> dict[str, Any]:
    fixed = {"minmax-mean": graphs.scores.mean(axis=1)}
    nested = NestedCrossValidation(graphs, fixed, folds_of(graphs, 4), objective_of(graphs))
    return choose_blend(nested, recipe=recipe)


def test_a_complementary_member_is_found_and_chosen() -> None:
    """Members that err independently are better together than the best alone."""
    graphs = noisy([1.0, 1.1, np.inf], n_graphs=16, n_configs=60, seed=0, per_family=2)
    choice = choice_of(graphs)
    assert choice["chosen"] not in (BEST_MEMBER, RECIPE)
    assert min(choice["weights"][name] for name in ("model0", "model1")) > 0.25
    assert choice["weights"]["model2"] < 0.2
    assert choice["difference_ci99"][0] > 0
    assert choice["nested_value"] > max(choice["member_values"].values())
    assert sum(choice["weights"].values()) == pytest.approx(1)
    tiles = noisy([1.5, 1.5, np.inf], n_graphs=60, n_configs=100, seed=2, kind="tile")
    choice = choice_of(tiles)
    assert choice["chosen"] not in (BEST_MEMBER, RECIPE) and choice["difference"] > 0


def test_copies_of_a_model_are_not_chosen_over_the_model() -> None:
    one = noisy([1.0], n_graphs=12, n_configs=40, seed=2)
    raw = [np.repeat(one.scores[rows], 3, axis=1) for rows in one.rows()]
    choice = choice_of(made_up(raw, [one.runtime[rows] for rows in one.rows()]))
    assert choice["chosen"] == BEST_MEMBER
    assert choice["weights"] == {"model0": 1, "model1": 0, "model2": 0}
    assert choice["nested_value"] == pytest.approx(choice["member_values"]["model0"])


def test_of_pure_noise_no_blend_is_better_than_the_best_member() -> None:
    """The nested figure is not fooled by the best of many fits; a figure without nesting is."""
    nested, naive = [], []
    for seed in range(12):
        graphs = noisy([np.inf] * 5, n_graphs=12, n_configs=20, seed=seed)
        choice = choice_of(graphs)
        nested.append((choice["nested_value"], choice["difference"]))
        objective, folds = tau_objective(graphs), folds_of(graphs, 4)
        fitted = NestedCrossValidation(graphs, {}, folds, objective)
        best = fitted.weights_of(GREEDY, frozenset())
        naive.append(objective(np.arange(12), best[None] / best.sum())[0])
    value, difference = np.mean(nested, axis=0)
    error = np.std(nested, axis=0) / np.sqrt(12)
    assert abs(value) < 3 * error[0]
    assert difference < 3 * error[1]
    assert np.mean(naive) > 0.04  # what is fitted and judged on the same graphs


def test_the_recipes_blend_stays_unless_it_is_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = noisy([1.0, 1.0, 1.0], n_graphs=16, n_configs=60, seed=3)
    good, bad = graphs.scores.mean(axis=1), -graphs.scores[:, 0]
    kept = choice_of(graphs, recipe=good)
    assert kept["chosen"] == RECIPE
    assert kept["weights"] == {}
    assert kept["nested_value"] == kept["recipe_value"]
    replaced = choice_of(graphs, recipe=bad)
    assert replaced["chosen"] not in (BEST_MEMBER, RECIPE)
    assert replaced["recipe_difference"] > 1
    other = np.random.default_rng(18).normal(0, 0.025, len(good))
    unsure = choice_of(graphs, recipe=good + other)
    assert unsure["recipe_difference"] > 0 > unsure["recipe_difference_ci99"][0]
    assert unsure["chosen"] == RECIPE
    monkeypatch.setattr(choose, "DECIDING_CONFIDENCE", 0.95)  # at which it would be beaten
    assert choice_of(graphs, recipe=good + other)["chosen"] not in (BEST_MEMBER, RECIPE)


def test_a_fold_is_judged_by_weights_that_have_not_seen_it() -> None:
    """Turned-round runtimes of a fold change no weights that judge it."""
    graphs = noisy([1.0, 1.5, 2.0], n_graphs=9, n_configs=30, seed=6)
    folds = folds_of(graphs, 3)
    turned = graphs.runtime.copy()
    for index in np.flatnonzero(folds == 0):
        rows = graphs.rows()[index]
        turned[rows] = turned[rows].max() + 1 - turned[rows]
    judged = [
        NestedCrossValidation(own, {}, folds, tau_objective(own)).outer_values()
        for own in (graphs, replace(graphs, runtime=turned))
    ]
    for before, after in zip(*judged, strict=True):
        np.testing.assert_allclose(before[folds == 0], -after[folds == 0])
        assert not np.allclose(before[folds == 1], after[folds == 1])
