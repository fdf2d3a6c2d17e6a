"""The pairwise objective against a loop over pairs, and numerical derivatives."""

import math

import numpy as np
import pytest

from models.trees import boosting as module
from models.trees.boosting import pairwise_logistic


def slow_loss(scores: list[float], runtime: list[float], sizes: list[int]) -> float:
    total, start = 0.0, 0
    for size in sizes:
        rows = range(start, start + size)
        for fast in rows:
            for slow in rows:
                if runtime[fast] < runtime[slow]:
                    total += math.log1p(math.exp(scores[slow] - scores[fast])) / size
        start += size
    return total


@pytest.mark.parametrize("max_pairs", [1, 20, 1 << 21])
def test_derivatives_are_those_of_the_loss(max_pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAIRS", max_pairs)
    rng = np.random.default_rng(0)
    sizes = [5, 1, 7]
    scores, runtime = rng.normal(size=13), rng.integers(0, 4, 13).astype(float)
    gradient, hessian = pairwise_logistic(runtime, sizes)(scores, None)
    step = 1e-4
    for row in range(13):
        losses = []
        for change in (-step, 0, step):
            moved = scores.copy()
            moved[row] += change
            losses.append(slow_loss(moved.tolist(), runtime.tolist(), sizes))
        before, here, after = losses
        assert gradient[row] == pytest.approx((after - before) / (2 * step), abs=1e-5)
        curvature = (after - 2 * here + before) / step**2
        assert hessian[row] == pytest.approx(max(curvature, 1e-6), abs=1e-4)


def test_equal_runtimes_pull_nowhere() -> None:
    gradient, hessian = pairwise_logistic(np.ones(4), [4])(np.arange(4.0), None)
    assert not gradient.any()
    assert (hessian > 0).all()


def test_scores_far_apart_stay_finite() -> None:
    gradient, hessian = pairwise_logistic(np.asarray([1.0, 2.0]), [2])(
        np.asarray([-1e6, 1e6]), None
    )
    np.testing.assert_allclose(gradient, [-0.5, 0.5], atol=1e-6)
    assert np.isfinite(hessian).all()
