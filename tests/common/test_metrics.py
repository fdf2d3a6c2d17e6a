"""Metrics against loops and brute force; intervals against drawing one by one, and theory."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.metrics import (
    DRAWS,
    family_draws,
    family_interval,
    family_means,
    interval_of,
    kendall_tau,
    ordered_pair_accuracy,
    ranking_from_scores,
    share_above_zero,
    slowdown_at_k,
    tile_score,
)


def loop_tau(scores: list[float], runtime: list[int]) -> float:
    """Return Kendall's tau-b; 0 where all scores are equal, nan where all runtimes are."""
    signs = [
        (np.sign(scores[i] - scores[j]), np.sign(runtime[i] - runtime[j]))
        for i in range(len(scores))
        for j in range(i)
    ]
    apart = [sum(map(abs, one)) for one in zip(*signs, strict=True)]
    if not signs or not apart[1]:
        return math.nan
    return sum(a * b for a, b in signs) / math.sqrt(max(1, apart[0]) * apart[1])


# Few distinct values make many ties; a wide range makes none.
paired = st.sampled_from([2, 4, 1000]).flatmap(
    lambda top: st.lists(
        st.tuples(st.integers(-top, top), st.integers(1, top)), min_size=1, max_size=40
    )
)


def columns(rows: list[tuple[int, int]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    scores, runtime = zip(*rows, strict=True)
    return np.array(scores, float), np.array(runtime, np.int64)


@given(paired)
@settings(max_examples=300, deadline=None)
def test_tau_matches_the_loop(rows: list[tuple[int, int]]) -> None:
    scores, runtime = columns(rows)
    expected = loop_tau(scores.tolist(), runtime.tolist())
    assert kendall_tau(scores, runtime) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(paired)
@settings(max_examples=300, deadline=None)
def test_ordered_pair_accuracy_matches_the_loop(rows: list[tuple[int, int]]) -> None:
    scores, runtime = columns(rows)
    earned, judged = 0.0, 0
    for i in range(len(rows)):
        for j in range(len(rows)):
            if runtime[i] < runtime[j]:
                judged += 1
                earned += 1.0 if scores[i] < scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    found = ordered_pair_accuracy(scores, runtime)
    assert math.isnan(found) if judged == 0 else found == pytest.approx(earned / judged)


@pytest.mark.parametrize("metric", [kendall_tau, ordered_pair_accuracy])
@pytest.mark.parametrize(
    ("scores", "runtime", "message"),
    [
        ([1.0, np.nan], [1, 2], "score of config 1 is nan"),
        ([-np.inf, 1.0], [1, 2], "score of config 0 is -inf"),
        ([1.0, 2.0], [1.0, np.inf], "runtime of config 1 is inf"),
        ([1.0, 2.0], [1, 2, 3], "one shape"),
        ([[1.0], [2.0]], [[1], [2]], "one shape"),
        ([], [], "c >= 1"),
    ],
)
def test_bad_input_is_refused(
    metric: Any, scores: list[float], runtime: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(np.array(scores), np.array(runtime))
    with pytest.raises(ValueError, match="config 1 is nan"):
        ranking_from_scores(np.array([1.0, np.nan]))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.randoms(), st.integers(1, 15))
@settings(max_examples=200, deadline=None)
def test_slowdown_matches_brute_force(runtime: list[int], random: Any, k: int) -> None:
    ranking = list(range(len(runtime)))
    random.shuffle(ranking)
    best_pick = min(runtime[config] for place, config in enumerate(ranking) if place < k)
    expected = best_pick / min(runtime)
    arrays = np.array(ranking), np.array(runtime)
    assert slowdown_at_k(*arrays, k) == expected >= 1
    if k == 5:
        assert tile_score(*arrays) == 2 - expected


def test_tile_score_counts_five_picks_of_normalised_runtimes_and_is_not_clipped() -> None:
    runtime = np.array([8.0, 6.0, 4.0, 4.0, 4.0, 1.0])
    assert tile_score(np.array([0, 1, 2, 3, 4, 5]), runtime) == -2  # the best comes sixth
    assert tile_score(np.array([0, 1, 2, 3, 5, 4]), runtime) == 1
    assert tile_score(np.array([1]), np.array([2.0, 3.0])) == 0.5


@pytest.mark.parametrize(
    ("ranking", "runtime", "k", "message"),
    [
        ([0], [1], 0, "at least one pick"),
        ([], [1], 1, "at least one pick"),
        ([1], [1], 1, r"outside 0\.\.0"),
        ([-1], [1], 1, r"outside 0\.\.0"),
        ([0], [0], 1, "positive"),
        ([0], [np.nan], 1, "positive"),
        ([0], [], 1, "non-empty"),
    ],
)
def test_bad_rankings_are_refused(
    ranking: list[int], runtime: list[float], k: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        slowdown_at_k(np.array(ranking), np.array(runtime), k)


FAMILIES = ["b", "a", "b", "c", "a", "b"]


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_family_means_equal_drawing_one_by_one(n_seeds: int) -> None:
    values = np.random.default_rng(1).normal(size=(6, n_seeds))
    rng = np.random.default_rng(4)
    names = sorted(set(FAMILIES))
    families = rng.integers(0, 3, (DRAWS, 3))
    seeds = rng.integers(0, n_seeds, (DRAWS, n_seeds))
    want = [
        np.mean(
            [
                values[graph, seed]
                for family in families[draw]
                for graph in range(6)
                if FAMILIES[graph] == names[family]
                for seed in seeds[draw]
            ]
        )
        for draw in range(DRAWS)
    ]
    given = values[:, 0] if n_seeds == 1 else values
    assert family_means(given, FAMILIES, seed=4) == pytest.approx(np.array(want))


def test_interval_has_the_width_of_theory_and_hangs_on_the_seed_alone() -> None:
    values = np.random.default_rng(5).normal(0.5, 0.1, 400)
    each = [str(place) for place in range(400)]
    low, high = interval_of(family_means(values, each))
    half_width = 1.96 * values.std() / np.sqrt(400)
    assert low == pytest.approx(values.mean() - half_width, abs=0.1 * half_width)
    assert high == pytest.approx(values.mean() + half_width, abs=0.1 * half_width)
    assert interval_of(family_means(values, each)) == (low, high)
    assert interval_of(family_means(values, each, seed=1)) != (low, high)
    assert family_interval(np.array([0.5, 0.5]), ["a", "b"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("draws", "share"),
    [
        ([3, -1, 1], 0.75),  # on the line through -1, 1 and 3: 0 at a quarter of it
        ([1, 2], 1),
        ([-1, -2], 0),
        ([0, 0], 0.5),
        ([0, 0, 1, 2, 3], 0.75),
        ([0, 0, -1, -2, -3], 0.25),
        ([-1, 0, 0, 0, 1], 0.5),
    ],
)
def test_share_above_zero_is_found_as_an_intervals_ends_are(
    draws: list[float], share: float
) -> None:
    assert share_above_zero(np.array(draws, float)) == pytest.approx(share)
    level = 1 - 2 * share_above_zero(np.array(draws, float))
    if 0 < level < 1:  # then the interval of this level ends at 0
        _, high = interval_of(np.array(draws, float), confidence=level)
        assert high == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("n_families", "student"), [(2, 12.706), (3, 4.303), (10, 2.262)])
def test_few_families_widen_an_interval_as_the_pages_say(n_families: int, student: float) -> None:
    """By sqrt(f / (f - 1)) and Student's quantile over the normal one, of a printed table."""
    widening = math.sqrt(n_families / (n_families - 1)) * student / 1.960
    values = np.random.default_rng(0).normal(size=n_families)
    families = [f"family{number}" for number in range(n_families)]
    expected = values.mean() + (family_means(values, families) - values.mean()) * widening
    np.testing.assert_allclose(family_draws(values, families), expected, rtol=1e-3, atol=1e-4)
