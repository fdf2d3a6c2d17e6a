"""How well an order of configs agrees with their measured runtimes; c configs of one graph.

Scores are runtime-like: the LOWER a score, the faster the config is predicted to be. A ranking
lists config indices, predicted fastest first. Arrays in, floats out; nothing is averaged over
graphs here.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE_PICKS = 5  # the competition looks at no more than this many picks of a tile row


def kendall_tau(scores: NDArray[Any], runtime: NDArray[Any]) -> float:
    """Return Kendall's tau-b between predicted order and runtime: +1 agrees, -1 is reversed.

    Equal to `scipy.stats.kendalltau(scores, runtime)` with one exception: scores that are all
    equal, on a graph whose runtimes are not, give 0 and not nan.

    Args:
        scores: (c,) predicted, lower = faster.
        runtime: (c,) measured, any unit.

    Returns:
        A value in [-1, 1]; nan where the runtimes give no order (one config, or all equal). Such
        a graph cannot be judged and is left out of every mean.

    Raises:
        ValueError: the arrays differ in length, are empty, or hold a nan or an infinity.
    """
    from scipy.stats import kendalltau

    scores, runtime = np.asarray(scores), np.asarray(runtime)
    if scores.ndim != 1 or scores.shape != runtime.shape or not len(scores):
        shapes = f"{scores.shape} and {runtime.shape}"
        raise ValueError(f"expected scores and runtimes of one shape (c,), c >= 1; got {shapes}")
    _check_finite("score", scores)
    _check_finite("runtime", runtime)
    if not _pairs_apart(runtime):
        return math.nan
    if not _pairs_apart(scores):
        return 0.0
    return float(kendalltau(scores, runtime).statistic)


def ordered_pair_accuracy(scores: NDArray[Any], runtime: NDArray[Any]) -> float:
    """Return the share of pairs of different runtime whose order the scores have right (OPA).

    A pair with equal scores counts half.

    Args:
        scores: (c,) predicted, lower = faster.
        runtime: (c,) measured, any unit.

    Returns:
        A value in [0, 1]; nan where no two runtimes differ.

    Raises:
        ValueError: the arrays differ in length, are empty, or hold a nan or an infinity.
    """
    tau, judged = kendall_tau(scores, runtime), _pairs_apart(runtime)
    if not judged:
        return math.nan
    # tau-b is right less wrong pairs, a whole number, over these roots
    excess = round(tau * math.sqrt(_pairs_apart(scores)) * math.sqrt(judged))
    return (judged + excess) / 2 / judged


def slowdown_at_k(ranking: NDArray[Any], runtime: NDArray[Any], k: int) -> float:
    """Return the best runtime among the first k picks over the best of all: 1 is perfect.

    Args:
        ranking: (m,) config indices, predicted fastest first; all are used where m < k.
        runtime: (c,) measured, positive; ratios need one unit for all, or normalised runtimes.

    Raises:
        ValueError: k < 1, no picks, an index outside 0..c-1, or a runtime that is not positive
            and finite.
    """
    runtime = np.asarray(runtime)
    picks = np.asarray(ranking)[:k] if k >= 1 else np.empty(0, np.int64)
    if runtime.ndim != 1 or not len(runtime) or not (np.isfinite(runtime) & (runtime > 0)).all():
        raise ValueError("runtimes must be a non-empty vector of positive, finite numbers")
    if not len(picks):
        raise ValueError(f"expected at least one pick, got {len(ranking)} picks and k = {k}")
    if picks.min() < 0 or picks.max() >= len(runtime):
        raise ValueError(f"a pick lies outside 0..{len(runtime) - 1}")
    return float(runtime[picks].min() / runtime.min())


def tile_score(ranking: NDArray[Any], runtime: NDArray[Any]) -> float:
    """Return the competition's score of one tile kernel: 2 - slowdown of the first five picks.

    At most 1, and not clipped: picks slower than twice the best give a negative score.

    Args:
        ranking: (m,) config indices, predicted fastest first; only the first five count.
        runtime: (c,) runtimes, each divided by its `config_runtime_normalizers`; positive.

    Raises:
        ValueError: as `slowdown_at_k`.
    """
    return 2 - slowdown_at_k(ranking, runtime, TILE_PICKS)


def _check_finite(name: str, values: NDArray[Any]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{name} of config {row} is {values[row]}; expected a finite number")


def _pairs_apart(values: NDArray[Any]) -> int:
    """Count the pairs of different values (c,)."""
    _, sizes = np.unique(values, return_counts=True)
    return int(len(values) * (len(values) - 1) // 2 - (sizes * (sizes - 1) // 2).sum())


def ranking_from_scores(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Rank configs (c,) int64 by score (c,), lowest (fastest) first; equal ones keep their order.

    Raises:
        ValueError: a score is nan or infinite.
    """
    _check_finite("score", np.asarray(scores))
    return np.argsort(scores, kind="stable").astype(np.int64)
