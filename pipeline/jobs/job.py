"""A job: one independent piece of work, described so that any process can do it, on any machine."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER_BYTES = 2 << 30  # what a training takes, with the graphs that it keeps


@dataclass(frozen=True)
class Job:
    """What to do, where it lies, and what it needs.

    Done again, a job goes on with what is there, and ends with the same bytes.

    Attributes:
        name: of no other job of the call; shown to users.
        function: at the top level of a module; what it returns is small.
        arguments: paths and settings, which can be pickled; no arrays.
        seconds: about how long it takes; jobs that lead to the longest way are begun first.
        threads: of the processor.
        on_gpu: whether it needs a GPU for itself.
        after: names of jobs that must have ended before.
        reads, makes: files and folders, for machines that do not see those of this one.
        stage: what its cost is booked under.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    seconds: float = 0.0
    threads: int = 1
    on_gpu: bool = False
    after: frozenset[str] = frozenset()
    reads: tuple[Path, ...] = ()
    makes: tuple[Path, ...] = ()
    stage: str = ""


@dataclass(frozen=True)
class Cost:
    """What a piece of work took: wall and processor time, and the peak of resident memory.

    The processor's time is that of processes it began as well. `peak_mib` is None where the system
    does not tell.
    """

    seconds: float
    cpu_s: float
    peak_mib: float | None


@contextmanager
def measured() -> Iterator[list[Cost]]:
    """Measure a block; its cost is in the list afterwards."""
    resets, start, before, costs = _reset_peak(), time.perf_counter(), os.times(), list[Cost]()
    yield costs
    # Of this process and those that it began: user, system.
    cpu_s = sum(os.times()[:4]) - sum(before[:4])
    costs.append(Cost(time.perf_counter() - start, cpu_s, _peak_mib() if resets else None))


def _reset_peak() -> bool:
    try:  # proc(5): brings VmHWM down to what is resident now
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_mib() -> float | None:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else None


def do(job: Job) -> tuple[Any, Cost]:
    """Do a job in this process; return what it returns, and what it took."""
    from threadpoolctl import threadpool_limits

    with measured() as costs, threadpool_limits(job.threads):
        value = job.function(*job.arguments)
    return value, costs[0]
