"""Means of g graphs × s seeds, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

DRAWS = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; no interval (nan) where there is nothing to tell it from."""

    mean: float
    low: float = math.nan
    high: float = math.nan


def estimate(values: NDArray[np.float64], families: Sequence[str]) -> Estimate:
    """Average over graphs and seeds; for one graph the interval is over seeds alone.

    Args:
        values: (g, s) one number per graph and seed.
        families: g names; graphs of one family vary together.
    """
    if len(values) == 1:
        return seed_interval(values[0])
    return bootstrap_interval(values, families)


def seed_interval(values: NDArray[np.float64]) -> Estimate:
    """Return Student's interval of the mean of (s,) values."""
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean)
    quantile = student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    half = float(quantile * values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half)


def bootstrap_interval(
    values: NDArray[np.float64], families: Sequence[str], *, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Return the percentile bootstrap interval; families and seeds are drawn with replacement.

    A drawn family brings all its graphs; graphs weigh the same. Families are drawn first, then
    seeds, `draws` times each.

    Args:
        values: (g, s).
        families: g names.
    """
    names, member = np.unique(np.asarray(families), return_inverse=True)
    f, s = len(names), values.shape[1]
    if f * s < 2:
        return Estimate(float(values.mean()))
    sizes = np.bincount(member)  # (f,)
    sums = np.zeros((f, s))
    np.add.at(sums, member, values)
    rng = np.random.default_rng(seed)
    drawn_families = rng.integers(0, f, (draws, f))
    drawn_seeds = rng.integers(0, s, (draws, s))
    by_seed = sums[drawn_families].sum(axis=1)  # (draws, s)
    total = np.take_along_axis(by_seed, drawn_seeds, axis=1).sum(axis=1)
    means = total / (sizes[drawn_families].sum(axis=1) * s)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(values.mean()), float(low), float(high))
