"""Which configs of a graph a training step takes.

A sampler takes the runtimes (u,) of the distinct configs, how many to take and a random generator,
and returns min(size, u) distinct positions among the u, int64: the same ones for the same state of
the generator.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Runtimes = NDArray[np.float64]
Positions = NDArray[np.int64]
Sampler = Callable[[Runtimes, int, np.random.Generator], Positions]


def uniform(runtime_ns: Runtimes, size: int, rng: np.random.Generator) -> Positions:
    """Draw configs with equal chances."""
    return rng.permutation(len(runtime_ns))[:size]


def stratified(runtime_ns: Runtimes, size: int, rng: np.random.Generator) -> Positions:
    """Draw one config from each of `size` equal quantiles of the runtime.

    Fast and slow configs are in every sample, which a uniform one has only on average.
    """
    order = _by_runtime(runtime_ns, rng)
    size = min(size, len(order))
    ends = np.arange(size + 1) * len(order) // size  # each stratum holds at least one
    return order[rng.integers(ends[:-1], ends[1:])]


def near_miss(runtime_ns: Runtimes, size: int, rng: np.random.Generator) -> Positions:
    """Draw half the sample as pairs of neighbours in runtime, which come first; the rest uniformly.

    Pairs that lie far apart are soon learned; neighbours are the hardest pairs of all. Where the
    two runtimes are equal there is nothing to tell apart, so no such pair is drawn.
    """
    order = _by_runtime(runtime_ns, rng)
    first = rng.integers(2)  # pairs do not overlap: they begin at even ranks, or at odd ones
    n_pairs = (len(order) - first) // 2
    pairs = order[first : first + 2 * n_pairs].reshape(n_pairs, 2)
    pairs = pairs[runtime_ns[pairs[:, 0]] < runtime_ns[pairs[:, 1]]]
    close = rng.permutation(pairs)[: max(1, size // 4)].ravel()
    others = rng.permutation(np.setdiff1d(order, close))
    return np.concatenate([close, others])[:size]


SAMPLERS: dict[str, Sampler] = {
    "uniform": uniform,
    "stratified": stratified,
    "near-miss": near_miss,
}


def _by_runtime(runtime_ns: Runtimes, rng: np.random.Generator) -> Positions:
    """Return all positions (u,), fastest first, equal runtimes in random order."""
    shuffled = rng.permutation(len(runtime_ns))
    return shuffled[np.argsort(runtime_ns[shuffled], kind="stable")]
