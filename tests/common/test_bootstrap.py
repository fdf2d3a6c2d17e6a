"""Intervals of a mean over graphs, against drawing one by one and against theory."""

import numpy as np
import pytest

from common.metrics import DRAWS, family_interval, family_means, interval_of

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


def test_the_interval_has_the_width_of_theory_and_hangs_on_the_seed_alone() -> None:
    values = np.random.default_rng(5).normal(0.5, 0.1, 400)
    each = [str(place) for place in range(400)]
    low, high = interval_of(family_means(values, each))
    half_width = 1.96 * values.std() / np.sqrt(400)
    assert low == pytest.approx(values.mean() - half_width, abs=0.1 * half_width)
    assert high == pytest.approx(values.mean() + half_width, abs=0.1 * half_width)
    assert interval_of(family_means(values, each)) == (low, high)
    assert interval_of(family_means(values, each, seed=1)) != (low, high)
    assert family_interval(np.array([0.5, 0.5]), ["a", "b"]) == (0.5, 0.5)
