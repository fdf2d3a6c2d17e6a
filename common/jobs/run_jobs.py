"""Jobs, pieces of work that any process can do, and the loop that passes them to an executor.

A job begins when the jobs that it waits for have ended. The ready job with the heaviest chain of
work goes first. A job whose worker died is repeated.
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
from common.progress import log, out_of_time, progress, reporting_as

# Memory of a job that does not say how much it needs.
WORKER_BYTES = 2 << 30
MAX_TRIES = 3
ALL = "all jobs"


@dataclass(frozen=True)
class Job:
    """One piece of work. A repeated job resumes from its files, and ends with the same bytes.

    Attributes:
        name: Name that no other job of the call has. Users see it.
        function: Function at the top level of a module. Its arguments and result are small.
        weight: Amount of work, in training steps of a network. Heavier jobs begin first.
        after: Names of the jobs that must have ended before.
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
    n_bytes: int = WORKER_BYTES


@dataclass(frozen=True)
class Cost:
    """The wall time, processor time (with child processes) and peak of resident memory of work.

    The peak is None if the system does not report it.
    """

    seconds: float
    cpu_s: float
    peak_mib: float | None


@contextmanager
def measure_cost() -> Iterator[list[Cost]]:
    """Measure the cost of a block."""
    resets, start, before, costs = _reset_peak(), time.perf_counter(), os.times(), list[Cost]()
    yield costs
    # The first four times are user and system time of this process and of its children.
    cpu_s = sum(os.times()[:4]) - sum(before[:4])
    costs.append(Cost(time.perf_counter() - start, cpu_s, own_peak_mib() if resets else None))


def _reset_peak() -> bool:
    # Writing 5 resets VmHWM to the present memory, see proc(5).
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def do(job: Job) -> tuple[Any, Cost]:
    """Do a job in this process, and return the result of its function and its cost."""
    with measure_cost() as costs, thread_limits(job.threads):
        value = job.function(*job.arguments)
    return value, costs[0]


@dataclass(frozen=True)
class Done:
    """A job that returned a value."""

    job: Job
    value: Any
    cost: Cost


@dataclass(frozen=True)
class Failed:
    """A job that raised an error."""

    job: Job
    error: Exception


@dataclass(frozen=True)
class Lost:
    """A job whose worker ended before it."""

    job: Job
    reason: str


Event = Done | Failed | Lost


class Executor(Protocol):
    """Does jobs. It is a context manager: no job runs after its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def free(self) -> Sequence[bool]:
        """Return one entry per worker that could begin a job now: whether it has a GPU."""

    def n_gpus(self) -> int:
        """Return the number of workers with a GPU."""

    def begin(self, job: Job, *, gpu: bool) -> None:
        """Begin a job on a free worker."""

    def events(self) -> Sequence[Event]:
        """Wait for at most about a second, and return the events of jobs that have ended."""


class Queue:
    """Jobs that have not begun, sorted by `chain_weights`, the heaviest first.

    List scheduling by critical path (R. L. Graham, 1969) ends no later than twice the best order.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        assert len({job.name for job in jobs}) == len(jobs), "each job has another name"
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
        """Put a job in front of all others."""
        self._order.insert(0, job)

    def release_after(self, job: Job) -> None:
        """Let jobs begin that wait for a job, which has ended."""
        for names in self._left.values():
            names.discard(job.name)


def chain_weights(jobs: Sequence[Job]) -> dict[str, float]:
    """Return the weight of each job's heaviest chain by name: the job and jobs that wait for it."""
    order = TopologicalSorter({job.name: job.after for job in jobs}).static_order()
    by_name, chains = {job.name: job for job in jobs}, dict.fromkeys((j.name for j in jobs), 0.0)
    for name in reversed([*order]):
        chains[name] += by_name[name].weight
        for before in by_name[name].after:
            chains[before] = max(chains[before], chains[name])
    return chains


def run_jobs(jobs: Sequence[Job], executor: Executor) -> dict[str, Done]:
    """Do all jobs. If a job fails, the jobs that wait for it are not done.

    Raises:
        OutOfTime: The time limit was reached. The same jobs resume where they stopped.
    """
    queue, results, losses = Queue(jobs), dict[str, Done](), Counter[str]()
    failures = list[Exception]()
    _report_progress(jobs, results)
    with executor:
        n_begun = _begin(queue, executor)
        while n_begun:
            for event in executor.events():
                n_begun -= 1
                with reporting_as(event.job.name):
                    # The progress of this job ends here, whether or not it is repeated.
                    progress(event.job.name, 1, 1)
                match event:
                    case Done(job, True) if job.repeats:
                        del losses[job.name]
                        queue.put_back(job)
                    case Done(job):
                        results[job.name] = event
                        queue.release_after(job)
                        _report_progress(jobs, results)
                    case Lost(job, reason):
                        losses[job.name] += 1
                        loss, times = f"{job.name}: its worker {reason}", losses[job.name]
                        # A job that repeats may lose one more worker.
                        if times < MAX_TRIES + job.repeats:
                            log.info(f"{loss}; it resumes in another worker")
                            queue.put_back(job)
                        else:
                            hint = f"{times} times; the same command resumes"
                            failures.append(PipelineError(f"{loss}, {hint}"))
                    case Failed(job, error):
                        failures.append(error)
                        if len(jobs) > 1 and not isinstance(error, OutOfTime):
                            log.info(f"failed: {job.name}: {error}")
            n_begun += _begin(queue, executor)
    if failures:
        raise next((e for e in failures if not isinstance(e, OutOfTime)), failures[0])
    if len(results) < len(jobs):
        raise OutOfTime(f"out of time with {len(results)} of {len(jobs)} jobs")
    return results


def _begin(queue: Queue, executor: Executor) -> int:
    n_begun = 0
    for gpu in () if out_of_time() else sorted(executor.free()):  # with a GPU: last
        if job := queue.take(gpu=gpu, n_gpus=executor.n_gpus()):
            executor.begin(job, gpu=gpu)
            n_begun += 1
    return n_begun


def _report_progress(jobs: Sequence[Job], results: Mapping[str, Done]) -> None:
    n, total = len(results), len(jobs)
    if total > 1:
        done_weight = sum(1 + event.job.weight for event in results.values())
        with reporting_as(ALL):
            work = f"{ALL}: {n} of {total}" if 0 < n < total else ALL
            progress(work, round(done_weight), round(sum(1 + job.weight for job in jobs)))
