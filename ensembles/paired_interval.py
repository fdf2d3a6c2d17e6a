"""How sure a mean over graphs is, where graphs of one family are no independent evidence."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from submissions.score import BOOTSTRAP_RESAMPLES, CONFIDENCE


def family_interval(
    values: NDArray[np.float64], families: Sequence[str], *, seed: int = 0
) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the mean over graphs, drawing whole families.

    The percentile bootstrap is too narrow for a few families f: by sqrt((f - 1) / f), and since
    their spread is known badly (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015). So its ends are moved away from the mean by the square root's
    inverse and by the ratio of Student's to the normal quantile: 2.7 for three families, 1.2 for
    ten.

    Args:
        values: (g,) one number, or one difference of two rankers, per graph.
        families: (g,) at least two different ones.
    """
    from scipy.stats import norm, t

    _, family = np.unique(np.asarray(families), return_inverse=True)
    sums, sizes = np.bincount(family, weights=values), np.bincount(family)
    n_families = len(sizes)
    drawn = np.random.default_rng(seed).integers(0, n_families, (BOOTSTRAP_RESAMPLES, n_families))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    stretch = np.sqrt(n_families / (n_families - 1)) * t.isf(tail, n_families - 1) / norm.isf(tail)
    mean = float(values.mean())
    return mean + float((low - mean) * stretch), mean + float((high - mean) * stretch)
