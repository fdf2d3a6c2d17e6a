"""Score rankings by measured runtimes, make folds by family, and draw intervals of means.

Scores are runtime-like: the LOWER a score, the faster the config is predicted to be. A ranking
lists config indices, sorted by score. Metrics are of one graph of c configs: arrays in, floats out.
Means are over g graphs. Graphs of one family are no independent evidence, so folds and draws keep
families whole.
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
TILE_PICKS = 5  # the competition looks at no more than this many picks of a tile row

Floats = NDArray[np.float64]


def ranking_score(
    kind: str, scores: NDArray[Any], runtime: NDArray[Any], *, as_submitted: bool = False
) -> float:
    """Score one graph by the competition's metric of its kind; more is better.

    Args:
        kind: "layout" for Kendall's tau, "tile" for the tile score of the first five by score.
        scores: Predicted scores, (c,), lower = faster.
        runtime: Measured runtimes, (c,); of tiles relative to the compiler's default.
        as_submitted: Equal scores keep the order of the file, as in a submission. By default they
            are ties for Kendall's tau.

    Returns:
        The metric; nan if a score is not finite, or if the runtimes give no order of layouts.
    """
    if not np.isfinite(scores).all():
        return math.nan
    ranking = ranking_from_scores(scores)
    if kind == "tile":
        return tile_score(ranking, runtime)
    return kendall_tau(np.argsort(ranking) if as_submitted else scores, runtime)


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

    A pair with equal scores counts half. Arguments and errors are those of `kendall_tau`.

    Returns:
        A value in [0, 1]; nan where no two runtimes differ.
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

    At most 1, and not clipped: picks slower than twice the best give a negative score. As
    `slowdown_at_k`, of runtimes (c,) each divided by its `config_runtime_normalizers`.
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

    A score that is nan or infinite raises a ValueError.
    """
    _check_finite("score", np.asarray(scores))
    return np.argsort(scores, kind="stable").astype(np.int64)


def family_folds(families: Sequence[str], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Part graphs into folds of about equal size, each family whole in one of them.

    Families are dealt out largest first, each to the fold with the fewest graphs so far.

    Args:
        families: Family of each graph, (g,).
        n_folds: Number of folds, at least 2.
        seed: Orders families of equal size.

    Returns:
        (g,) int64 number of each graph's fold.

    Raises:
        UsageError: Less than two folds are asked for.
        PipelineError: There are fewer families than folds.
    """
    if n_folds < 2:
        raise UsageError(f"folds = {n_folds}: expected at least 2, one to hold out, one to learn")
    names, family, sizes = np.unique(families, return_inverse=True, return_counts=True)
    if len(names) < n_folds:
        known = ", ".join(names) or "none"
        raise PipelineError(
            f"{len(families)} train graphs are of {len(names)} architectures ({known}); expected "
            f"at least {n_folds}, one per fold; lower `folds` or add data"
        )
    shuffled = np.random.default_rng(seed).permutation(len(names))
    fold_of, fold_sizes = np.zeros(len(names), np.int64), np.zeros(n_folds, np.int64)
    for number in sorted(shuffled, key=lambda number: -sizes[number]):
        fold_of[number] = fold_sizes.argmin()
        fold_sizes[fold_of[number]] += sizes[number]
    return fold_of[family]


def family_means(values: Floats, families: Sequence[str], *, seed: int = SEED) -> Floats:
    """Draw families with replacement; return the mean over their graphs for each draw; (2000,).

    A drawn family brings all its graphs, and graphs weigh the same. Of several seeds, as many are
    drawn with replacement, for each draw anew.

    Args:
        values: (g,) one number, or one difference of two rankers, per graph; or (g, s) by seed.
        families: (g,) of each; where each graph is its own, this is Efron's bootstrap.
    """
    by_seed = np.atleast_2d(values.T).T  # (g, s)
    names, family = np.unique(np.asarray(families), return_inverse=True)
    sizes, n_seeds = np.bincount(family), by_seed.shape[1]
    sums = np.zeros((len(names), n_seeds))
    np.add.at(sums, family, by_seed)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(names), (DRAWS, len(names)))  # (d, families)
    drawn_seeds = rng.integers(0, n_seeds, (DRAWS, n_seeds))
    totals = np.take_along_axis(sums[drawn].sum(axis=1), drawn_seeds, axis=1).sum(axis=1)
    means: Floats = totals / (sizes[drawn].sum(axis=1) * n_seeds)
    return means


def family_draws(
    values: Floats,
    families: Sequence[str],
    *,
    seed: int = SEED,
    confidence: float = CONFIDENCE,
) -> Floats:
    """Draw the mean over graphs as `family_means`, stretched for few families; (2000,).

    The percentile bootstrap is too narrow for a few families f: by sqrt((f - 1) / f), and since
    their spread is known badly (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015). So all draws are moved away from the mean by the square root's
    inverse and by the ratio of Student's to the normal quantile: 2.7 for three families, 1.2 for
    ten.

    Args:
        values: (g,) one number per graph.
        families: (g,) at least two different ones.
        seed: Seed of the draws.
        confidence: Confidence of the interval that is taken of the draws.
    """
    from scipy.stats import norm, t

    n_families, tail, mean = len(set(families)), (1 - confidence) / 2, float(values.mean())
    stretch = np.sqrt(n_families / (n_families - 1)) * t.isf(tail, n_families - 1) / norm.isf(tail)
    draws: Floats = mean + (family_means(values, families, seed=seed) - mean) * stretch
    return draws


def interval_of(draws: Floats, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of (d,) draws, of 95 % unless told otherwise."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def share_above_zero(draws: Floats) -> float:
    """Return the probability that what (d,) draws tell of is above 0.

    It is found on the same line through the sorted draws as the interval's ends: below .025 or
    above .975 just where the 95 % interval leaves 0 out. Of draws that are 0 as many count as above
    it as bring the probability nearest to a half.
    """
    ordered, levels = np.sort(draws), np.linspace(0, 1, len(draws))
    at_most = np.interp(0.0, ordered, levels)
    below = 1 - np.interp(0.0, -ordered[::-1], levels)
    return float(1 - np.clip(0.5, below, at_most))


def family_interval(
    values: Floats, families: Sequence[str], *, seed: int = SEED, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of `family_draws`."""
    draws = family_draws(values, families, seed=seed, confidence=confidence)
    return interval_of(draws, confidence=confidence)
