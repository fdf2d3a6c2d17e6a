"""Time programs so that the figures can be trusted on a noisy machine; c configs, r rounds.

The shortest of many runs is what a program takes when nothing disturbs it. Disturbances last, so
the runs of one config are spread over several rounds, each of which visits all configs in a new
random order. How well two rounds agree is the ceiling for any predictor.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.metrics import kendall_tau

VISIT_BUDGET_NS = 30_000_000
MIN_RUNS = 3
MAX_RUNS = 1_000


class Clock(NamedTuple):
    """A clock and its name in the manifest; `now_ns` counts nanoseconds from any origin."""

    name: str
    now_ns: Callable[[], int]


class Visit(NamedTuple):
    """One config timed in one round: its shortest run in ns, and how many runs there were."""

    runtime_ns: int
    n_runs: int


def clock_for(platform: str) -> Clock:
    """Return the clock that is steadiest on a JAX platform such as "cpu" or "gpu".

    On a CPU it is the CPU time of the process, which does not run while others use the core. An
    accelerator works outside of the process, so there it is the wall time, on an idle device.
    """
    if platform == "cpu":
        return Clock("process CPU time", time.process_time_ns)
    return Clock("wall time", time.perf_counter_ns)


def time_visit(
    run: Callable[[], object], clock: Clock, *, budget_ns: int = VISIT_BUDGET_NS
) -> Visit:
    """Call `run`, which returns at its end, until `budget_ns` are spent, 3 to 1,000 times."""
    fastest, spent, n_runs = 0, 0, 0
    while n_runs < MIN_RUNS or (spent < budget_ns and n_runs < MAX_RUNS):
        start = clock.now_ns()
        run()
        taken = max(1, clock.now_ns() - start)
        fastest = min(fastest or taken, taken)
        spent += taken
        n_runs += 1
    return Visit(fastest, n_runs)


@dataclass(frozen=True)
class Figures:
    """What the rounds of one graph say of its c configs.

    Attributes:
        runtime_ns: (c,) int64, the shortest run of each config over all rounds.
        repeat_tau: Kendall tau between the first two interleaved rounds; nan without an order.
        relative_noise: median over configs of |first - second| / first of these rounds.
        spread: runtime of the slowest config over that of the fastest.
    """

    runtime_ns: NDArray[np.int64]
    repeat_tau: float
    relative_noise: float
    spread: float


def figures(rounds_ns: NDArray[np.int64]) -> Figures:
    """Summarise (r, c) runtimes: row 0 of the search, rows 1.. of at least two rounds."""
    runtime_ns = rounds_ns.min(axis=0)
    first, second = rounds_ns[1], rounds_ns[2]
    return Figures(
        runtime_ns=runtime_ns,
        repeat_tau=kendall_tau(first, second),
        relative_noise=float(np.median(np.abs(first - second) / first)),
        spread=float(runtime_ns.max() / runtime_ns.min()),
    )
