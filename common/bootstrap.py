"""How sure a mean over graphs is, where graphs of one family are no independent evidence."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 2_000
SEED = 0
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


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


def stretched_means(
    means: Floats, mean: float, n_families: int, *, confidence: float = CONFIDENCE
) -> Floats:
    """Move the bootstrap draws of a mean away from it, as far as few families make it unsure.

    The percentile bootstrap is too narrow for a few families f: by sqrt((f - 1) / f), and since
    their spread is known badly (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015). So all draws are moved away from the mean by the square root's
    inverse and by the ratio of Student's to the normal quantile: 2.7 for three families, 1.2 for
    ten.

    Args:
        means: (d,) by `family_means`.
    """
    from scipy.stats import norm, t

    tail = (1 - confidence) / 2
    stretch = np.sqrt(n_families / (n_families - 1)) * t.isf(tail, n_families - 1) / norm.isf(tail)
    stretched: Floats = mean + (means - mean) * stretch
    return stretched


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
    """Return a bootstrap interval of the mean over graphs: families drawn whole, stretched.

    Args:
        values: (g,) one number per graph.
        families: (g,) at least two different ones.
    """
    means = family_means(values, families, seed=seed)
    n_families = len(set(families))
    draws = stretched_means(means, float(values.mean()), n_families, confidence=confidence)
    return interval_of(draws, confidence=confidence)
