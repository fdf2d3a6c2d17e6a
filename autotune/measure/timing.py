"""Time programs so that the figures can be trusted on a noisy machine; c configs, r rounds.

The shortest of many runs is what a program takes when nothing disturbs it. Disturbances last, so
the runs of one config are spread over several rounds, each of which visits all configs in a new
random order. How well one half of them agrees with the other is the ceiling for any predictor.

A host may stop a virtual core for most of every 10 ms, and the CPU time of a process counts the
stops: every run of more than a millisecond or two then reads 10, 20 or 30 ms. Such stops are looked
for before each visit. Where there are some, a run begins as one ends, and those that it must have
met are taken off its wall time.
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
GLANCE_NS, WATCH_NS = 25_000_000, 100_000_000  # a glance finds a stop, or there are none
GAP_NS = 300_000  # between two looks at the clock; the kernel's own work takes less
MIN_STOPPED = 0.05  # share of the time


class Clock(NamedTuple):
    """A clock and its name in the manifest; `now_ns` counts nanoseconds from any origin."""

    name: str
    now_ns: Callable[[], int]


class Stops(NamedTuple):
    """How a host stops this core: for `length_ns`, once in `period_ns`."""

    length_ns: int
    period_ns: int

    def taken_off(self, wall_ns: int) -> int:
        """Return what a run that began at a stop's end took, without the stops that it met."""
        runs_ns = self.period_ns - self.length_ns
        met = max(0, round((wall_ns - runs_ns / 2) / self.period_ns))
        return max(1, wall_ns - met * self.length_ns)


class Visit(NamedTuple):
    """One config timed in one round."""

    runtime_ns: int  # its shortest run, or the median one
    n_runs: int
    is_stopped: bool = False  # the host stopped the core meanwhile
    code: str = ""  # what tells the code that ran from others


WALL = Clock("wall time", time.perf_counter_ns)
CPU = Clock("process CPU time", time.process_time_ns)


def clock_for(platform: str) -> Clock:
    """Return the clock that is steadiest on a JAX platform such as "cpu" or "gpu".

    On a CPU it is the CPU time of the process, which does not run while others use the core. An
    accelerator works outside of the process, so there it is the wall time, on an idle device.
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
    """Call `run`, which returns at its end, until `budget_ns` are spent, 3 to 1,000 times.

    Args:
        stops: what the host does to this core; then `wall` is read, not `clock`, and the budget is
            of what the runs take without the stops. The wait for each run comes on top.
        is_median: the visit's runtime is the median run's, not the shortest one's: where a run
            waits for threads, none of its callers sees the shortest.
    """
    runs_ns = list[int]()
    spent = 0
    timer = wall if stops else clock
    while len(runs_ns) < MIN_RUNS or (spent < budget_ns and len(runs_ns) < MAX_RUNS):
        is_after_stop = stops and _wait_for_a_stop(stops, wall)
        start = timer.now_ns()
        run()
        taken = max(1, timer.now_ns() - start)
        if stops and is_after_stop:
            taken = stops.taken_off(taken)
        spent += taken
        runs_ns.append(taken)
    # How many stops a run met is a guess: the shortest of such runs may be too short.
    is_median |= stops is not None and min(runs_ns) > stops.period_ns - stops.length_ns
    return Visit(round(median(runs_ns)) if is_median else min(runs_ns), len(runs_ns), bool(stops))


def host_stops(cpu: Clock = CPU, wall: Clock = WALL) -> Stops | None:
    """Watch this core for 25 ms, or 100 where it is stopped; return how the host stops it, if so.

    A leap of the wall time that the process's CPU time makes too is the host's; else another
    process ran.
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


def _wait_for_a_stop(stops: Stops, wall: Clock) -> bool:
    """Return as a stop ends; tell whether there was one within three periods."""
    begin = before = wall.now_ns()
    while (now := wall.now_ns()) - before < stops.length_ns / 2:
        if now - begin > 3 * stops.period_ns:
            return False
        before = now
    return True


def figures(rounds_ns: NDArray[np.int64], module: NDArray[np.int64]) -> dict[str, Any]:
    """Summarise (r, c) runtimes of c configs: row 0 of the search, rows 1.. of two rounds or more.

    Args:
        module: (c,) which of the m compiled modules each config runs, 0..m-1: the order of those
            that run one and the same is noise alone.

    Returns:
        spread: runtime of the slowest config over that of the fastest, the shortest run of each.
        n_modules: m.
        repeat_tau: Kendall tau between the shortest runs of the modules in the odd and in the even
            interleaved rounds; nan without an order.
        aa_ratio: median over configs of even / odd of these: of each with itself.
        relative_noise: median over configs of |even - odd| / odd of these.
    """
    runtime_ns = rounds_ns.min(axis=0)
    odd, even = rounds_ns[1::2].min(axis=0), rounds_ns[2::2].min(axis=0)
    ratios = even / odd
    halves = np.full((2, module.max() + 1), np.iinfo(np.int64).max)
    for half, of_modules in zip((odd, even), halves, strict=True):
        np.minimum.at(of_modules, module, half)
    return {
        "spread": float(runtime_ns.max() / runtime_ns.min()),
        "n_modules": halves.shape[1],
        "repeat_tau": kendall_tau(*halves),
        "aa_ratio": float(np.median(ratios)),
        "relative_noise": float(np.median(np.abs(even - odd) / odd)),
    }
