"""Means of g graphs × s seeds, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from common.bootstrap import CONFIDENCE, family_means, interval_of


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; no interval (nan) where there is nothing to tell it from."""

    mean: float
    low: float = math.nan
    high: float = math.nan


def estimate(values: NDArray[np.float64], families: Sequence[str]) -> Estimate:
    """Average over graphs and seeds, families and seeds drawn; of one graph, over seeds alone.

    Args:
        values: (g, s) one number per graph and seed.
        families: g names; graphs of one family vary together.
    """
    if len(values) == 1:
        return seed_interval(values[0])
    mean = float(values.mean())
    if len(set(families)) * values.shape[1] < 2:
        return Estimate(mean)
    return Estimate(mean, *interval_of(family_means(values, families)))


def seed_interval(values: NDArray[np.float64]) -> Estimate:
    """Return Student's interval of the mean of (s,) values."""
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean)
    quantile = student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    half = float(quantile * values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half)
