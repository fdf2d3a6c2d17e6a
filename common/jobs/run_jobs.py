"""Jobs, pieces of work that any process can do, and the loop that has an executor do them.

A job begins when the jobs that it waits for have ended. Of the jobs that can begin, the job with
the heaviest chain of work goes first. A job whose worker died is done again.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Protocol, Self

from common.errors import OutOfTime, PipelineError
from common.machine import own_peak_mib, thread_limits
from common.progress import log, out_of_time, progress, told_by

WORKER_BYTES = 2 << 30  # what a training takes, with the graphs that it keeps
MAX_TRIES = 3
ALL = "all jobs"


@dataclass(frozen=True)
class Job:
    """One independent piece of work: what to do, where it lies, and what it needs.

    Done again, a job goes on with what is there, and ends with the same bytes.

    Attributes:
        name: of no other job of the call; shown to users.
        function: at the top level of a module; what it returns is small.
        arguments: paths and settings, which can be pickled; no arrays.
        weight: Amount of work, in training steps of a network. Heavier jobs begin first.
        threads: of the processor.
        on_gpu: whether it needs a GPU for itself.
        after: names of jobs that must have ended before.
        stage: what its cost is booked under.
        repeats: Whether the function is called again and again, until it returns False.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    weight: float = 0.0
    threads: int = 1
    on_gpu: bool = False
    after: frozenset[str] = frozenset()
    stage: str = ""
    repeats: bool = False


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
    costs.append(Cost(time.perf_counter() - start, cpu_s, own_peak_mib() if resets else None))


def _reset_peak() -> bool:
    try:  # proc(5): brings VmHWM down to what is resident now
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def do(job: Job) -> tuple[Any, Cost]:
    """Do a job in this process; return what it returns, and what it took."""
    with measured() as costs, thread_limits(job.threads):
        value = job.function(*job.arguments)
    return value, costs[0]


@dataclass(frozen=True)
class Done:
    job: Job
    value: Any
    cost: Cost


@dataclass(frozen=True)
class Failed:
    job: Job
    error: Exception


@dataclass(frozen=True)
class Lost:
    job: Job
    reason: str


Event = Done | Failed | Lost


class Executor(Protocol):
    """Who does jobs. A context manager: none is at work after its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def free(self) -> Sequence[bool]:
        """Return for each worker that could begin a job now whether it has a GPU."""

    def n_gpus(self) -> int:
        """Return how many workers have a GPU."""

    def begin(self, job: Job, *, gpu: bool) -> None:
        """Let such a free worker begin a job."""

    def events(self) -> Sequence[Event]:
        """Wait for news, at most about a second; return what has ended of what was begun."""


class Queue:
    """Jobs that have not begun, sorted by `chain_weights`, the heaviest first.

    List scheduling by critical path (R. L. Graham, 1969) ends no later than twice the best order.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        assert len({job.name for job in jobs}) == len(jobs), "each job has a name of its own"
        weights = chain_weights(jobs)
        self._order = sorted(jobs, key=lambda job: -weights[job.name])
        self._left = {job.name: set(job.after) for job in jobs}

    def take(self, *, gpu: bool, n_gpus: int) -> Job | None:
        """Return the next job that a worker can begin now, None if there is none.

        Args:
            gpu: Whether the worker has a GPU. Jobs that need a GPU go first then.
            n_gpus: Number of GPUs of all workers. If it is 0, jobs need no GPU either.
        """
        ready = [job for job in self._order if not self._left[job.name]]
        if n_gpus:
            ready = [job for job in ready if gpu or not job.on_gpu]
            ready.sort(key=lambda job: not job.on_gpu)  # stable
        if not ready:
            return None
        self._order.remove(ready[0])
        return ready[0]

    def put_back(self, job: Job) -> None:
        """Let a job be taken again, before all others."""
        self._order.insert(0, job)

    def ended(self, job: Job) -> None:
        for names in self._left.values():
            names.discard(job.name)


def chain_weights(jobs: Sequence[Job]) -> dict[str, float]:
    """Return by name the weight of a job and of the heaviest chain of jobs that wait for it."""
    order = TopologicalSorter({job.name: job.after for job in jobs}).static_order()
    by_name, chains = {job.name: job for job in jobs}, dict.fromkeys((j.name for j in jobs), 0.0)
    for name in reversed([*order]):
        chains[name] += by_name[name].weight
        for before in by_name[name].after:
            chains[before] = max(chains[before], chains[name])
    return chains


def run_jobs(jobs: Sequence[Job], executor: Executor) -> dict[str, Done]:
    """Do all jobs; return what they returned, by name.

    A job whose worker died is done again, on another one if there is, from what it has left. One
    that fails keeps only those from being done that come after it.

    Raises:
        PipelineError: the first job's that failed, or workers died of a call of the same job, one
            after the other, MAX_TRIES times.
        OutOfTime: the time is over; the same jobs go on where they stopped.
    """
    queue, done, losses = Queue(jobs), dict[str, Done](), Counter[str]()
    failures = list[Exception]()
    _tell(jobs, done)
    with executor:
        n_begun = _begin(queue, executor)
        while n_begun:
            for event in executor.events():
                n_begun -= 1
                with told_by(event.job.name):
                    progress(event.job.name, 1, 1)  # whoever did it does so no more
                match event:
                    case Done(job, True) if job.repeats:
                        del losses[job.name]
                        queue.put_back(job)
                    case Done(job):
                        done[job.name] = event
                        queue.ended(job)
                        _tell(jobs, done)
                    case Lost(job, reason):
                        losses[job.name] += 1
                        told, times = f"{job.name}: its worker {reason}", losses[job.name]
                        if times < MAX_TRIES + job.repeats:  # a call may be given up first
                            log.info(f"{told}; it goes on elsewhere")
                            queue.put_back(job)
                        else:
                            hint = f"{times} times; the same command goes on"
                            failures.append(PipelineError(f"{told}, {hint}"))
                    case Failed(job, error):
                        failures.append(error)
                        if len(jobs) > 1 and not isinstance(error, OutOfTime):
                            log.info(f"failed: {job.name}: {error}")
            n_begun += _begin(queue, executor)
    if failures:
        raise next((e for e in failures if not isinstance(e, OutOfTime)), failures[0])
    if len(done) < len(jobs):
        raise OutOfTime(f"out of time with {len(done)} of {len(jobs)} jobs")
    return done


def _begin(queue: Queue, executor: Executor) -> int:
    n_begun = 0
    for gpu in () if out_of_time() else sorted(executor.free()):  # with a GPU: last
        if job := queue.take(gpu=gpu, n_gpus=executor.n_gpus()):
            executor.begin(job, gpu=gpu)
            n_begun += 1
    return n_begun


def _tell(jobs: Sequence[Job], done: Mapping[str, Done]) -> None:
    n, total = len(done), len(jobs)
    if total > 1:
        done_weight = sum(1 + event.job.weight for event in done.values())
        with told_by(ALL):
            what = f"{ALL}: {n} of {total}" if 0 < n < total else ALL
            progress(what, round(done_weight), round(sum(1 + job.weight for job in jobs)))
