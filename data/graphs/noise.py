"""The noise of a graph's runtimes, measured by its repeated configs.

A config that was measured twice gives two noisy values of one true runtime. The Kendall tau between
first and second measurements of many such configs is the score of a second measurement as a
predictor.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.metrics import kendall_tau

# With fewer repeated configs tau is meaningless.
MIN_REPEATED = 10
DRAWS = 10


@dataclass(frozen=True)
class Noise:
    """Two measurements of the same configs, compared."""

    n_repeated: int  # configs that were measured at least twice
    tau: float  # between two measurements of each; nan where one draw of them gives no order

    @property
    def best_tau(self) -> float:
        """Return an upper bound of the score of the true runtimes: the square root of tau.

        Let q be the expected sign of a pair's measured difference. Two independent measurements
        agree to the mean of q² over pairs. No predictor exceeds the mean of |q|, which is at most
        the root of the mean of q². So the true runtimes score between `tau` and this bound. A
        higher score on such configs is luck or leakage.
        """
        return math.nan if math.isnan(self.tau) else math.sqrt(max(self.tau, 0.0))


def measure_noise(
    runtime_ns: NDArray[np.int64], group: NDArray[np.int64], *, seed: int = 0
) -> Noise | None:
    """Compare repeated measurements of a graph's configs; None if fewer than 10 were repeated.

    Each draw takes two different measurements of every repeated config at random. `tau` is the mean
    over draws. Time O(c log² c), memory O(c).

    Repeated configs are no fair sample of all configs. A search returns to the good ones, which
    have similar runtimes.

    Args:
        runtime_ns: Runtimes in ns, (c,), int64, positive.
        group: The distinct config of each row, (c,), int64, 0..u-1, none empty.
    """
    by_config, sizes = _in_plain_order(runtime_ns, group)
    starts = np.cumsum(sizes) - sizes
    n_repeated = int((sizes > 1).sum())
    if n_repeated < MIN_REPEATED:
        return None
    places, counts = starts[sizes > 1], sizes[sizes > 1]
    rng = np.random.default_rng(seed)
    taus = []
    for _ in range(DRAWS):
        first, second = rng.integers(0, counts), rng.integers(0, counts - 1)
        second += second >= first  # two different measurements of each
        taus.append(kendall_tau(by_config[places + first], by_config[places + second]))
    return Noise(n_repeated, tau=float(np.mean(taus)))


def _in_plain_order(
    runtime_ns: NDArray[np.int64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort by group, and groups by their runtimes. Return the runtimes (c,) and the sizes (u,)."""
    by_config = runtime_ns[np.lexsort((runtime_ns, group))]
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    sums = np.add.reduceat(by_config, starts)
    place = np.lexsort((sums, sizes, by_config[starts + sizes - 1], by_config[starts]))
    return runtime_ns[np.lexsort((runtime_ns, np.argsort(place)[group]))], sizes[place]
