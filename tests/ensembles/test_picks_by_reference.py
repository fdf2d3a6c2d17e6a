"""The configs to measure, against loops over draws and over pairs of configs."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph, config_hashes
from ensembles import picks as module
from ensembles.picks import lowest_expected_minimum, top_k_to_measure
from ensembles.score_errors import LAYOUT_LENGTH, normal_draws, tile_correlation, tile_places

Floats = NDArray[np.float64]


def slow_choice(
    scores: NDArray[np.float32], correlation: Floats, error: float, k: int, first: int
) -> list[int]:
    """Each config in turn has the lowest mean over draws of errors and over their opposites."""
    guess = (scores - scores.mean()) / scores.std()
    factor = np.linalg.cholesky(correlation + 1e-6 * np.eye(len(correlation)))
    errors = factor @ normal_draws()[: len(correlation)].astype(np.float64)
    chosen = [first]
    while len(chosen) < k:
        means = {}
        for other in sorted({*range(len(correlation))} - {*chosen}):
            measured = [*chosen, other]
            means[other] = np.mean(
                [
                    (guess[measured, None] + sign * error * errors[measured]).min(axis=0)
                    for sign in (1, -1)
                ]
            )
        chosen.append(min(means, key=lambda config: means[config]))
    return chosen


def correlated(rng: np.random.Generator, m: int) -> Floats:
    places = rng.normal(size=(m, 2))
    return np.exp(-np.square(places[:, None] - places).sum(axis=-1) / 2)


@pytest.mark.parametrize("seed", range(8))
def test_choices_have_the_lowest_mean_over_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.normal(3, 5, size=40).astype(np.float32))
    correlation, first = correlated(rng, 12), seed % 3
    for error in (0.5, 1.0, 2.0):
        found = lowest_expected_minimum(scores, correlation, error, 6, first).tolist()
        assert found == slow_choice(scores, correlation, error, 6, first)


def test_draws_are_normal_and_independent() -> None:
    draws = normal_draws()
    assert draws.shape == (256, 2048)
    assert (draws.mean(), draws.std()) == pytest.approx((0, 1), abs=0.01)
    assert np.abs(np.corrcoef(draws) - np.eye(256)).max() < 0.12


def test_errors_of_tiles_correlate_by_the_logarithms_of_sizes() -> None:
    """A dimension of each tensor; the kernel and the output share one, and one has one size."""
    rng, config_feat = np.random.default_rng(0), np.zeros((9, 24), np.float32)
    sizes = rng.integers(1, 200, size=(9, 3))
    config_feat[:, [5, 8, 21]] = sizes
    config_feat[:, 9], config_feat[:, 13] = 7, sizes[:, 0]
    config_feat[:, [6, 7, 14, 15, 22, 23]] = rng.integers(1, 99, size=(9, 6))  # sums, products
    found = tile_correlation(tile_places(config_feat))
    for i, one in enumerate(sizes):
        for j, other in enumerate(sizes):
            distance = np.square(np.log1p(one) - np.log1p(other)).sum()
            assert found[i, j] == pytest.approx(math.exp(-distance / (2 * 2.0**2)), rel=1e-5)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_layouts_are_chosen_among_the_first_fifth(k: int, layout_graph: LayoutGraph) -> None:
    """Equal scores are in the order of the hashes of their configs."""
    hashes = config_hashes(layout_graph)
    scores = (hashes % np.uint64(17)).astype(np.float32)
    values = layout_graph.configs.rows(np.arange(layout_graph.n_configs))
    distinct = np.unique(hashes, return_index=True)[1]
    rows = np.array(sorted(distinct, key=lambda row: (scores[row], hashes[row])))
    candidates = rows[: max(k, math.ceil(0.2 * len(rows)))]
    differing = np.array(
        [[(values[i] != values[j]).any(axis=1).mean() for j in candidates] for i in candidates]
    )
    correlation = np.exp(-differing / LAYOUT_LENGTH)
    first = module.first_layouts(layout_graph.configs, candidates)
    expected = slow_choice(scores[rows], correlation, module.LAYOUT_ERROR, k, first)
    found = top_k_to_measure(scores, layout_graph, k)
    assert found.tolist() == rows[expected].tolist()
