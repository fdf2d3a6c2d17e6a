"""How well an order of configs agrees with their measured runtimes; c configs of one graph.

Scores are runtime-like: the LOWER a score, the faster the config is predicted to be. A ranking
lists config indices, predicted fastest first. Arrays in, floats out; nothing is averaged over
graphs here.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TILE_PICKS = 5  # the competition looks at no more than this many picks of a tile row


class PairCounts(NamedTuple):
    """The c(c-1)/2 pairs of configs by how score and runtime order them, but those tied in both."""

    concordant: int
    discordant: int
    tied_score_only: int
    tied_runtime_only: int


def count_pairs(scores: NDArray[Any], runtime: NDArray[Any]) -> PairCounts:
    """Count concordant, discordant and tied pairs in O(c log² c) time and O(c) memory.

    Knight's method (Journal of the American Statistical Association 61, 1966): with the configs
    sorted by score, and by runtime within equal scores, the discordant pairs are the inversions
    of the runtimes. The counts are exact integers.

    Args:
        scores: (c,) predicted, lower = faster.
        runtime: (c,) measured, any unit.

    Raises:
        ValueError: the arrays differ in length, are empty, or hold a nan or an infinity.
    """
    scores, runtime = _checked(scores, runtime)
    score_rank, score_tied = _dense_ranks(scores)
    runtime_rank, runtime_tied = _dense_ranks(runtime)
    joint_rank = score_rank * (int(runtime_rank.max()) + 1) + runtime_rank
    _, tied_both = _dense_ranks(joint_rank)
    discordant = _count_inversions(runtime_rank[np.argsort(joint_rank)])
    all_pairs = len(scores) * (len(scores) - 1) // 2
    concordant = all_pairs - score_tied - runtime_tied + tied_both - discordant
    return PairCounts(concordant, discordant, score_tied - tied_both, runtime_tied - tied_both)


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
    pairs = count_pairs(scores, runtime)
    ordered = pairs.concordant + pairs.discordant
    distinct_runtime = ordered + pairs.tied_score_only
    distinct_score = ordered + pairs.tied_runtime_only
    if distinct_runtime == 0:
        return math.nan
    if distinct_score == 0:
        return 0.0
    excess = pairs.concordant - pairs.discordant
    tau = excess / math.sqrt(distinct_score) / math.sqrt(distinct_runtime)
    return min(1.0, max(-1.0, tau))


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
    pairs = count_pairs(scores, runtime)
    judged = pairs.concordant + pairs.discordant + pairs.tied_score_only
    if judged == 0:
        return math.nan
    return (pairs.concordant + pairs.tied_score_only / 2) / judged


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


def _checked(
    scores: NDArray[Any], runtime: NDArray[Any]
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    scores, runtime = np.asarray(scores), np.asarray(runtime)
    if scores.ndim != 1 or scores.shape != runtime.shape or not len(scores):
        raise ValueError(
            f"expected scores and runtimes of one shape (c,), c >= 1; "
            f"got {scores.shape} and {runtime.shape}"
        )
    _check_finite("score", scores)
    _check_finite("runtime", runtime)
    return scores, runtime


def _check_finite(name: str, values: NDArray[Any]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{name} of config {row} is {values[row]}; expected a finite number")


def _dense_ranks(values: NDArray[np.generic]) -> tuple[NDArray[np.int64], int]:
    """Return (c,) int64 ranks 0.. with equal ranks for equal values, and the tied pairs."""
    _, ranks, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return ranks.astype(np.int64), int((sizes * (sizes - 1) // 2).sum())


def _count_inversions(ranks: NDArray[np.int64]) -> int:
    """Count pairs i < j with ranks[i] > ranks[j]; ranks (c,) non-negative.

    A merge sort from the bottom up, each level in a few array operations: blocks of `width` are
    sorted already, and shifting block pair b by b * (largest rank + 2) makes all left halves
    together one sorted array, so that a single binary search serves the whole level.
    """
    top = int(ranks.max()) + 1
    size = 1 << (len(ranks) - 1).bit_length()
    blocks = np.full(size, top, np.int64)  # padding at the end, above all: adds no inversion
    blocks[: len(ranks)] = ranks
    inversions, width = 0, 1
    while width < size:
        halves = blocks.reshape(-1, 2, width)
        pair = np.arange(len(halves), dtype=np.int64)[:, None]
        left = (halves[:, 0] + pair * (top + 1)).ravel()
        right = (halves[:, 1] + pair * (top + 1)).ravel()
        not_above = np.searchsorted(left, right, side="right").reshape(-1, width) - pair * width
        inversions += width * len(right) - int(not_above.sum())
        width *= 2
        blocks = np.sort(blocks.reshape(-1, width), axis=1, kind="stable")
    return inversions


def ranking_from_scores(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Rank configs (c,) int64 by score (c,), lowest (fastest) first; equal ones keep their order.

    Raises:
        ValueError: a score is nan or infinite.
    """
    _check_finite("score", np.asarray(scores))
    return np.argsort(scores, kind="stable").astype(np.int64)
