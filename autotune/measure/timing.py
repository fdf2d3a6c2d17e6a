"""Time programs on a noisy machine; c configs, r rounds.

The shortest run of a visit is the time of an undisturbed program. A disturbance may last longer
than a visit. So the visits of one config are in several rounds, and each round visits all configs
in a new random order. A machine may also be faster for a while, so the runtime of a config is the
median over its visits. The agreement of two halves of the rounds is the noise ceiling.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.metrics import kendall_tau

VISIT_BUDGET_NS = 30_000_000
MIN_RUNS = 3
MAX_RUNS = 1_000


class Clock(NamedTuple):
    """A clock and its name in the manifest. `now_ns` returns nanoseconds from any origin."""

    name: str
    now_ns: Callable[[], int]


class Visit(NamedTuple):
    """The time of one config in one round.

    Attributes:
        runtime_ns: Time of the shortest or the median run in ns.
    """

    runtime_ns: int
    n_runs: int
    code: str = ""


WALL = Clock("wall time", time.perf_counter_ns)
CPU = Clock("process CPU time", time.process_time_ns)


def clock_for(platform: str) -> Clock:
    """Return the steadiest clock for a platform of JAX, for example "cpu".

    On a CPU this is the CPU time of the process, which stops while other processes use the core.
    An accelerator works outside of the process, so there it is the wall time.
    """
    return CPU if platform == "cpu" else WALL


def time_visit(
    run: Callable[[], object],
    clock: Clock,
    *,
    budget_ns: int = VISIT_BUDGET_NS,
    is_median: bool = False,
) -> Visit:
    """Time a function, 3 to 1,000 times.

    Args:
        run: Function to time. It returns when the work is done.
        budget_ns: Time of all runs in ns, after which no new run begins.
        is_median: Whether the result is the median run. Use it for runs with several threads.
    """
    runs_ns = list[int]()
    while len(runs_ns) < MIN_RUNS or (sum(runs_ns) < budget_ns and len(runs_ns) < MAX_RUNS):
        start = clock.now_ns()
        run()
        runs_ns.append(max(1, clock.now_ns() - start))
    return Visit(round(median(runs_ns)) if is_median else min(runs_ns), len(runs_ns))


def median_ns(rounds_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the median over rounds (r, c) of the runtimes in ns, (c,)."""
    return np.rint(np.median(rounds_ns, axis=0)).astype(np.int64)


def figures(rounds_ns: NDArray[np.int64], module: NDArray[np.int64]) -> dict[str, Any]:
    """Summarise the runtimes of c configs.

    Args:
        rounds_ns: Runtimes in ns, (r, c). Row 0 is of the search. At least two rounds follow.
        module: Compiled module of each config, (c,) in 0..m-1. Configs of one module differ only by
            noise.

    Returns:
        spread: Runtime of the slowest config over the fastest.
        n_modules: Number m of compiled modules.
        repeat_tau: Kendall's tau between odd and even rounds, by the mean runtimes of the modules.
            nan without an order.
        aa_ratio: Median over configs of even / odd rounds.
        relative_noise: Median over configs of |even - odd| / odd rounds.
    """
    runtime_ns = median_ns(rounds_ns)
    odd, even = median_ns(rounds_ns[1::2]), median_ns(rounds_ns[2::2])
    ratios = even / odd
    halves = [np.bincount(module, half) / np.bincount(module) for half in (odd, even)]
    return {
        "spread": float(runtime_ns.max() / runtime_ns.min()),
        "n_modules": len(halves[0]),
        "repeat_tau": kendall_tau(*halves),
        "aa_ratio": float(np.median(ratios)),
        "relative_noise": float(np.median(np.abs(even - odd) / odd)),
    }
