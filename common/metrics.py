"""Score rankings by measured runtimes, assign families to folds, and draw intervals of means.

The LOWER a score, the faster the config is predicted to be. A ranking lists config indices, sorted
by score. Metrics are of one graph of c configs: arrays in, floats out. Means are over g graphs.
Graphs of one family are no independent evidence, so folds and draws never separate them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError

# The competition's metric by kind of config.
METRICS = {"layout": "kendall_tau", "tile": "tile_score"}
DRAWS = 2_000
SEED = 0
CONFIDENCE = 0.95
# The competition scores only the first five configs of a tile kernel.
TILE_PICKS = 5

Floats = NDArray[np.float64]


def ranking_score(
    kind: str, scores: NDArray[Any], runtime: NDArray[Any], *, as_submitted: bool = False
) -> float:
    """Score one graph by the competition's metric of its kind. A higher metric is better.

    Args:
        kind: "layout" for Kendall's tau, "tile" for the tile score of the first five configs.
        scores: Predicted scores, (c,), lower = faster.
        runtime: Measured runtimes, (c,). Runtimes of tiles are relative to the compiler's default.
        as_submitted: Whether equal scores keep the order of the file, as in a submission. By
            default they are ties for Kendall's tau.

    Returns:
        The metric; nan if a score is not finite, or if all runtimes of a layout graph are equal.
    """
    if not np.isfinite(scores).all():
        return math.nan
    ranking = ranking_from_scores(scores)
    if kind == "tile":
        return tile_score(ranking, runtime)
    return kendall_tau(np.argsort(ranking) if as_submitted else scores, runtime)


def kendall_tau(scores: NDArray[Any], runtime: NDArray[Any]) -> float:
    """Return Kendall's tau-b between predicted order and runtime: +1 agrees, -1 is reversed.

    Equal to `scipy.stats.kendalltau(scores, runtime)` with one exception. If all scores are equal
    but the runtimes are not, the result is 0 and not nan.

    Args:
        scores: Predicted scores, (c,), lower = faster.
        runtime: Measured runtimes, (c,), in any unit.

    Returns:
        A value in [-1, 1]; nan if there is one config, or if all runtimes are equal. Such a graph
        is left out of every mean.

    Raises:
        ValueError: The arrays differ in length, are empty, or contain a nan or an infinity.
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
    """Return the share of pairs of different runtime that the scores order correctly (OPA).

    A pair with equal scores counts half. Arguments and errors are those of `kendall_tau`.

    Args:
        scores: Predicted scores, (c,), lower = faster.
        runtime: Measured runtimes, (c,), in any unit.

    Returns:
        A value in [0, 1]; nan if no two runtimes differ.
    """
    tau, n_judged = kendall_tau(scores, runtime), _pairs_apart(runtime)
    if not n_judged:
        return math.nan
    # tau-b is the number of right pairs minus that of wrong pairs, divided by these roots.
    excess = round(tau * math.sqrt(_pairs_apart(scores)) * math.sqrt(n_judged))
    return (n_judged + excess) / 2 / n_judged


def slowdown_at_k(ranking: NDArray[Any], runtime: NDArray[Any], k: int) -> float:
    """Return the best runtime among the first k configs over the best of all: 1 is perfect.

    Args:
        ranking: Config indices, (m,), predicted fastest first. All are used if m < k.
        runtime: Measured runtimes, (c,), positive, in one unit or normalised.
        k: Number of configs to measure, at least 1.

    Returns:
        The slowdown, at least 1.

    Raises:
        ValueError: k < 1, the ranking is empty, an index is outside 0..c-1, or a runtime is not
            positive and finite.
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
    """Return the competition's score of one tile kernel: 2 - slowdown of the first five configs.

    Args:
        ranking: Config indices, (m,), predicted fastest first.
        runtime: Measured runtimes, (c,), each divided by its `config_runtime_normalizers`.

    Returns:
        A value of at most 1. It is negative if the best of the five takes more than twice the best
        time.
    """
    return 2 - slowdown_at_k(ranking, runtime, TILE_PICKS)


def _check_finite(name: str, values: NDArray[Any]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{name} of config {row} is {values[row]}; expected a finite number")


def _pairs_apart(values: NDArray[Any]) -> int:
    _, sizes = np.unique(values, return_counts=True)
    return int(len(values) * (len(values) - 1) // 2 - (sizes * (sizes - 1) // 2).sum())


def ranking_from_scores(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Rank configs by score, lowest (fastest) first. Equal scores keep their order.

    Args:
        scores: Predicted scores, (c,).

    Returns:
        Config indices, (c,), int64.

    Raises:
        ValueError: A score is nan or infinite.
    """
    _check_finite("score", np.asarray(scores))
    return np.argsort(scores, kind="stable").astype(np.int64)


def family_folds(families: Sequence[str], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Assign graphs to folds of about equal size. All graphs of a family are in one fold.

    Families are assigned largest first, each to the fold with the fewest graphs so far.

    Args:
        families: Family of each graph, (g,).
        n_folds: Number of folds, at least 2.
        seed: Seed of the order of families of equal size.

    Returns:
        The fold of each graph, (g,), int64.

    Raises:
        UsageError: `n_folds` is less than 2.
    """
    if n_folds < 2:
        raise UsageError(f"folds = {n_folds}: expected at least 2, one to hold out, one to learn")
    names, family, sizes = np.unique(families, return_inverse=True, return_counts=True)
    if len(names) < n_folds:
        text = ", ".join(names) or "none"
        raise PipelineError(
            f"{len(families)} train graphs are of {len(names)} architectures ({text}); expected "
            f"at least {n_folds}, one per fold; lower `folds` or add data"
        )
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of, fold_sizes = np.zeros(len(names), np.int64), np.zeros(n_folds, np.int64)
    for number in sorted(order, key=lambda number: -sizes[number]):
        fold_of[number] = fold_sizes.argmin()
        fold_sizes[fold_of[number]] += sizes[number]
    return fold_of[family]


def family_means(values: Floats, families: Sequence[str], *, seed: int = SEED) -> Floats:
    """Draw families with replacement, and return the mean over their graphs for each draw.

    A drawn family contributes all its graphs, and all graphs have equal weight. If there are
    several seeds, each draw also takes the same number of seeds with replacement. If each graph is
    a family, this is Efron's bootstrap.

    Args:
        values: One number per graph, (g,), or (g, s) for s seeds. A number may be a difference of
            two rankers.
        families: Family of each graph, (g,).
        seed: Seed of the draws.

    Returns:
        The means, (2000,).
    """
    by_seed = np.atleast_2d(values.T).T  # (g, s)
    names, family = np.unique(np.asarray(families), return_inverse=True)
    sizes, n_seeds = np.bincount(family), by_seed.shape[1]
    sums = np.zeros((len(names), n_seeds))
    np.add.at(sums, family, by_seed)
    rng = np.random.default_rng(seed)
    drawn_families = rng.integers(0, len(names), (DRAWS, len(names)))  # (d, families)
    drawn_seeds = rng.integers(0, n_seeds, (DRAWS, n_seeds))
    totals = np.take_along_axis(sums[drawn_families].sum(axis=1), drawn_seeds, axis=1).sum(axis=1)
    means: Floats = totals / (sizes[drawn_families].sum(axis=1) * n_seeds)
    return means


def family_draws(
    values: Floats,
    families: Sequence[str],
    *,
    seed: int = SEED,
    confidence: float = CONFIDENCE,
) -> Floats:
    """Draw the mean over graphs as `family_means`, stretched if there are few families.

    For f families, the percentile bootstrap is too narrow by sqrt((f - 1) / f). The spread of few
    families is also known badly. See Hesterberg, "What Teachers Should Know About the Bootstrap",
    The American Statistician 69, 2015. So each draw's distance to the mean is divided by that root.
    It is also multiplied by the ratio of Student's to the normal quantile: 2.7 for three families,
    1.2 for ten.

    Args:
        values: One number per graph, (g,).
        families: Family of each graph, (g,), at least two different ones.
        seed: Seed of the draws.
        confidence: Confidence of the interval that the draws are for, in (0, 1).

    Returns:
        The stretched means, (2000,).
    """
    from scipy.stats import norm, t

    n_families, tail, mean = len(set(families)), (1 - confidence) / 2, float(values.mean())
    stretch = np.sqrt(n_families / (n_families - 1)) * t.isf(tail, n_families - 1) / norm.isf(tail)
    draws: Floats = mean + (family_means(values, families, seed=seed) - mean) * stretch
    return draws


def interval_of(draws: Floats, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the lower and the upper end of the interval of draws (d,), by default of 95 %."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def share_above_zero(draws: Floats) -> float:
    """Return the probability that the mean is above 0.

    The probability uses the same interpolation of the sorted draws as `interval_of`. So it is below
    .025 or above .975 exactly if the 95 % interval excludes 0. Draws that are exactly 0 count
    towards the side that brings the probability nearest to a half.

    Args:
        draws: Draws of the mean, (d,).

    Returns:
        The probability, in [0, 1].
    """
    ascending, levels = np.sort(draws), np.linspace(0, 1, len(draws))
    at_most = np.interp(0.0, ascending, levels)
    below = 1 - np.interp(0.0, -ascending[::-1], levels)
    return float(1 - np.clip(0.5, below, at_most))


def family_interval(
    values: Floats, families: Sequence[str], *, seed: int = SEED, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the lower and the upper end of the interval of `family_draws`."""
    draws = family_draws(values, families, seed=seed, confidence=confidence)
    return interval_of(draws, confidence=confidence)
