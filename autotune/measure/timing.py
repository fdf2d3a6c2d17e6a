"""Time programs on a noisy machine; c configs, r rounds.

The shortest of many runs is the time of an undisturbed program. A disturbance lasts longer than a
run. So the runs of one config are in several rounds, and each round visits all configs in a new
random order. The agreement of two halves of the rounds is the noise ceiling.

A host may stop a virtual core for most of every 10 ms, and the CPU time of a process includes the
stops. Each run of more than 2 ms then seems to take 10, 20 or 30 ms. So each visit first looks for
stops. If there are stops, a run begins at the end of a stop, and its wall time is reduced by the
stops during the run.
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
# A core is watched for 25 ms. If that shows a stop, it is watched for 100 ms.
GLANCE_NS, WATCH_NS = 25_000_000, 100_000_000
# A longer gap between two readings of the clock is a stop: the kernel's own work takes less.
GAP_NS = 300_000
# Stops below this share of the time are ignored.
MIN_STOPPED = 0.05


class Clock(NamedTuple):
    """A clock and its name in the manifest. `now_ns` returns nanoseconds from any origin."""

    name: str
    now_ns: Callable[[], int]


class Stops(NamedTuple):
    """Stops of this core by the host: each takes `length_ns`, and one begins each `period_ns`."""

    length_ns: int
    period_ns: int

    def without_stops(self, wall_ns: int) -> int:
        """Return the time without stops of a run that began at the end of a stop, in ns."""
        runs_ns = self.period_ns - self.length_ns
        n_stops = max(0, round((wall_ns - runs_ns / 2) / self.period_ns))
        return max(1, wall_ns - n_stops * self.length_ns)


class Visit(NamedTuple):
    """The time of one config in one round.

    Attributes:
        runtime_ns: Time of the shortest or the median run in ns.
    """

    runtime_ns: int
    n_runs: int
    is_stopped: bool = False
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
    stops: Stops | None = None,
    wall: Clock = WALL,
    budget_ns: int = VISIT_BUDGET_NS,
    is_median: bool = False,
) -> Visit:
    """Time a function, 3 to 1,000 times.

    Args:
        run: Function to time. It returns when the work is done.
        stops: Stops of this core. With them, `wall` is read instead of `clock`. The stops and the
            wait before each run do not count for the budget.
        budget_ns: Time of all runs in ns, after which no new run begins.
        is_median: Whether the result is the median run. Use it for runs with several threads.
    """
    runs_ns = list[int]()
    spent = 0
    timer = wall if stops else clock
    while len(runs_ns) < MIN_RUNS or (spent < budget_ns and len(runs_ns) < MAX_RUNS):
        is_after_stop = stops and _wait_for_stop(stops, wall)
        start = timer.now_ns()
        run()
        run_ns = max(1, timer.now_ns() - start)
        if stops and is_after_stop:
            run_ns = stops.without_stops(run_ns)
        spent += run_ns
        runs_ns.append(run_ns)
    # The number of stops is a guess, so the shortest of such runs may be too short.
    is_median |= stops is not None and min(runs_ns) > stops.period_ns - stops.length_ns
    return Visit(round(median(runs_ns)) if is_median else min(runs_ns), len(runs_ns), bool(stops))


def host_stops(cpu: Clock = CPU, wall: Clock = WALL) -> Stops | None:
    """Watch this core for 25 ms, or for 100 ms if the host stops it.

    A gap in the wall time is a stop if the CPU time of the process has the same gap. Otherwise
    another process ran.

    Returns:
        The stops, or None if there are too few.
    """
    gaps = list[tuple[int, int]]()
    begin = before = wall.now_ns()
    cpu_before = cpu.now_ns()
    while before - begin < (WATCH_NS if gaps else GLANCE_NS):
        now, cpu_now = wall.now_ns(), cpu.now_ns()
        if now - before >= GAP_NS and cpu_now - cpu_before > (now - before) / 2:
            gaps.append((before, now))
        before, cpu_before = now, cpu_now
    stopped = sum(end - start for start, end in gaps)
    if len(gaps) < 2 or stopped < MIN_STOPPED * WATCH_NS:
        return None
    length = median(end - start for start, end in gaps)
    period = median((np.diff([end for _, end in gaps])).tolist())
    return Stops(round(length), round(period))


def _wait_for_stop(stops: Stops, wall: Clock) -> bool:
    """Wait for the end of a stop. Return False if there is none within three periods."""
    begin = before = wall.now_ns()
    while (now := wall.now_ns()) - before < stops.length_ns / 2:
        if now - begin > 3 * stops.period_ns:
            return False
        before = now
    return True


def figures(rounds_ns: NDArray[np.int64], module: NDArray[np.int64]) -> dict[str, Any]:
    """Summarise the runtimes of c configs.

    Args:
        rounds_ns: Runtimes in ns, (r, c). Row 0 is of the search. At least two rounds follow.
        module: Compiled module of each config, (c,) in 0..m-1. Configs of one module differ only by
            noise.

    Returns:
        spread: Runtime of the slowest config over the fastest, by the shortest run of each.
        n_modules: Number m of compiled modules.
        repeat_tau: Kendall's tau between odd and even rounds, by the shortest runs of the modules.
            nan without an order.
        aa_ratio: Median over configs of even / odd shortest runs.
        relative_noise: Median over configs of |even - odd| / odd shortest runs.
    """
    runtime_ns = rounds_ns.min(axis=0)
    odd, even = rounds_ns[1::2].min(axis=0), rounds_ns[2::2].min(axis=0)
    ratios = even / odd
    halves = np.full((2, module.max() + 1), np.iinfo(np.int64).max)
    for half, module_ns in zip((odd, even), halves, strict=True):
        np.minimum.at(module_ns, module, half)
    return {
        "spread": float(runtime_ns.max() / runtime_ns.min()),
        "n_modules": halves.shape[1],
        "repeat_tau": kendall_tau(*halves),
        "aa_ratio": float(np.median(ratios)),
        "relative_noise": float(np.median(np.abs(even - odd) / odd)),
    }
