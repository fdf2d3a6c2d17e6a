"""Samplers: distinct positions, the same for the same seed, and what each promises."""

from itertools import pairwise

import numpy as np
import pytest

from models.training.samplers import SAMPLERS, Sampler, near_miss, stratified

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def runtimes(n: int, distinct: int) -> np.ndarray:
    return np.random.default_rng(n).integers(1, distinct + 1, n).astype(np.float64)


@every_sampler
@pytest.mark.parametrize("distinct", [1, 3, 10**6])
@pytest.mark.parametrize(("n", "size"), [(1, 2), (2, 2), (3, 2), (17, 16), (18, 17), (500, 64)])
def test_positions_are_distinct_and_repeat(
    sampler: Sampler, n: int, size: int, distinct: int
) -> None:
    runtime = runtimes(n, distinct)
    for seed in range(20):
        drawn = sampler(runtime, size, np.random.default_rng(seed))
        assert drawn.shape == (min(size, n),)
        assert len(set(drawn.tolist())) == len(drawn)
        assert set(drawn.tolist()) <= set(range(n))
        assert drawn.tolist() == sampler(runtime, size, np.random.default_rng(seed)).tolist()


@every_sampler
def test_every_config_is_drawn_now_and_then(sampler: Sampler) -> None:
    runtime = runtimes(40, 10**6)
    counts = np.zeros(40)
    for seed in range(500):
        counts[sampler(runtime, 8, np.random.default_rng(seed))] += 1
    assert counts.min() > 0.5 * counts.mean()


@pytest.mark.parametrize(("n", "size"), [(64, 8), (1000, 10), (37, 5)])
def test_stratified_draws_one_config_of_each_quantile(n: int, size: int) -> None:
    runtime = runtimes(n, 10**9)
    rank = np.argsort(np.argsort(runtime))
    drawn = stratified(runtime, size, np.random.default_rng(0))
    ends = [n * i // size for i in range(size + 1)]
    for low, high in pairwise(ends):
        assert ((rank[drawn] >= low) & (rank[drawn] < high)).sum() == 1


def test_half_of_a_near_miss_sample_are_neighbours_of_different_runtime() -> None:
    runtime = runtimes(1000, 10**9)
    rank = np.argsort(np.argsort(runtime))
    drawn = near_miss(runtime, 64, np.random.default_rng(0))
    pairs = rank[drawn[:32]].reshape(16, 2)
    assert (pairs[:, 1] - pairs[:, 0] == 1).all()
    runtime = np.repeat([1.0, 2.0], 50)
    drawn = [near_miss(runtime, 8, np.random.default_rng(seed))[:2] for seed in range(20)]
    # The one border is between ranks 49 and 50: a pair in half of the draws, those that begin at 1.
    assert 0 < sum(runtime[pair].tolist() == [1.0, 2.0] for pair in drawn) < 20
