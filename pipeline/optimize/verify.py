"""Whether a candidate is faster than the default: paired rounds, with an A/A pair beside them.

A candidate that was screened as the fastest of many is mostly lucky: its figure is too good. So a
few are measured again in a fresh process, and the best of these once more in another. r rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.bootstrap import CONFIDENCE, DRAWS, interval_of

LEAST_GAIN = 0.02  # code that is placed elsewhere in memory alone may differ by so much

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Ratio:
    """A runtime over another's, and its 95 % interval."""

    value: float
    low: float
    high: float


def paired_ratio(own_ns: Times, base_ns: Times, *, seed: int = 0) -> Ratio:
    """Return the median of runtimes (r,) over others, by round: what disturbs one disturbs both."""
    ratios = own_ns / base_ns
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Ratio(float(np.median(ratios)), *interval_of(np.median(ratios[drawn], axis=1)))


def pooled(ratios: Sequence[float]) -> Ratio:
    """Return the mean of processes' ratios and Student's interval, both of their logarithms."""
    from scipy.stats import t

    logs = np.log(ratios)
    half = t.isf((1 - CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return Ratio(*np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist())


def is_faster(candidate: Ratio, same: Ratio) -> bool:
    """Tell whether a candidate is faster by more than the default differs from itself.

    Args:
        same: the default over the default, in the same rounds: the A/A pair.
    """
    return candidate.high < 1 - band(same)


def is_slower(candidate: Ratio, same: Ratio) -> bool:
    """Tell whether a candidate is slower by more than that."""
    return candidate.low > 1 + band(same)


def band(same: Ratio) -> float:
    """Return how far from 1 a ratio must lie to count, beside the A/A pair's."""
    return max(LEAST_GAIN, 1 - same.low, same.high - 1)
