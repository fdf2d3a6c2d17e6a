"""Do jobs on an executor: one whose forerunners have ended, at the start of the longest way first.

A job is done again where a worker died, until all are done or time is up.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Protocol, Self

from common.errors import OutOfTime, PipelineError
from common.progress import log, out_of_time, progress, told_by
from pipeline.jobs.job import Cost, Job

MAX_TRIES = 3
ALL = "all jobs"


@dataclass(frozen=True)
class Done:
    """A job that has ended."""

    job: Job
    value: Any
    cost: Cost


@dataclass(frozen=True)
class Failed:
    """A job that raised what would be raised again."""

    job: Job
    error: Exception


@dataclass(frozen=True)
class Lost:
    """A job whose worker has gone: it was killed, or its machine was lost."""

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
    """Jobs that have not been begun.

    "Longest way first" (R. L. Graham's list scheduling by critical path, 1969) ends no later than
    twice the best order, and close to it where the longest job is short beside the whole.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        assert len({job.name for job in jobs}) == len(jobs), "each job has a name of its own"
        self._ways = ways_s(jobs)
        self._order = sorted(jobs, key=lambda job: -self._ways[job.name])
        self._left = {job.name: set(job.after) for job in jobs}

    def take(self, *, gpu: bool, n_gpus: int) -> Job | None:
        """Return the next job that a worker can begin now; None if there is none.

        Args:
            gpu: whether the worker has a GPU: then jobs that need one go first, but for those that
                would be the last to end, were they begun only after these.
            n_gpus: that all workers have; if they have none, jobs need none either.
        """
        ready = [job for job in self._order if not self._left[job.name]]
        if n_gpus:
            ready = [job for job in ready if gpu or not job.on_gpu]
            left_s = sum(job.seconds for job in self._order if job.on_gpu) / n_gpus
            ready.sort(key=lambda job: not (job.on_gpu or self._ways[job.name] > left_s))  # stable
        if not ready:
            return None
        self._order.remove(ready[0])
        return ready[0]

    def put_back(self, job: Job) -> None:
        """Let a job be taken again, before all others."""
        self._order.insert(0, job)

    def ended(self, job: Job) -> None:
        """Note that a job is done: others may wait for it alone."""
        for names in self._left.values():
            names.discard(job.name)


def ways_s(jobs: Sequence[Job]) -> dict[str, float]:
    """Return by name how long a job and what comes after it take at least, one after the other."""
    order = TopologicalSorter({job.name: job.after for job in jobs}).static_order()
    by_name, ways = {job.name: job for job in jobs}, dict.fromkeys((job.name for job in jobs), 0.0)
    for name in reversed([*order]):
        ways[name] += by_name[name].seconds
        for before in by_name[name].after:
            ways[before] = max(ways[before], ways[name])
    return ways


def run_jobs(jobs: Sequence[Job], executor: Executor) -> dict[str, Done]:
    """Do all jobs; return what they returned, by name.

    A job whose worker died is done again, on another one if there is, from what it has left. One
    that fails keeps only those from being done that come after it.

    Raises:
        PipelineError: the first job's that failed, or a worker died thrice of the same job.
        OutOfTime: the time is over; the same jobs go on where they stopped.
    """
    books, n_begun = _Books(jobs, Queue(jobs)), 0
    with executor:
        while True:
            for gpu in () if out_of_time() else sorted(executor.free()):  # with a GPU: last
                job = books.queue.take(gpu=gpu, n_gpus=executor.n_gpus())
                if job:
                    executor.begin(job, gpu=gpu)
                    n_begun += 1
            if not n_begun:
                break
            for event in executor.events():
                books.note(event)
                n_begun -= 1
    if books.errors:
        raise books.errors[0]
    if len(books.done) < len(jobs):
        told = f"out of time with {len(books.done)} of {len(jobs)} jobs"
        raise books.late[0] if books.late else OutOfTime(told)
    return books.done


class _Books:
    """What has become of the jobs so far."""

    def __init__(self, jobs: Sequence[Job], queue: Queue) -> None:
        self.queue, self._total = queue, len(jobs)
        self.done: dict[str, Done] = {}
        self.errors: list[Exception] = []
        self.late: list[OutOfTime] = []
        self._losses = Counter[str]()
        self._all_s = sum(1 + job.seconds for job in jobs)
        self._tell()

    def _tell(self) -> None:
        """Say how far all are, by the time that they take."""
        n, is_over = len(self.done), len(self.done) == self._total
        done_s = sum(1 + event.job.seconds for event in self.done.values())
        if self._total > 1:
            with told_by(ALL):
                what = f"{ALL}: {n} of {self._total}" if n and not is_over else ALL
                progress(what, round(done_s), round(self._all_s))

    def note(self, event: Event) -> None:
        with told_by(event.job.name):
            progress(event.job.name, 1, 1)  # whoever did it does so no more
        if isinstance(event, Done):
            self.done[event.job.name] = event
            self.queue.ended(event.job)
            self._tell()
        elif isinstance(event, Lost):
            self._losses[event.job.name] += 1
            times = self._losses[event.job.name]
            told = f"{event.job.name}: its worker {event.reason}"
            if times < MAX_TRIES:
                log.info(f"{told}; it goes on elsewhere")
                self.queue.put_back(event.job)
            else:
                told += f", {times} times (out of memory?); the same command goes on"
                self.errors.append(PipelineError(told))
        elif isinstance(event.error, OutOfTime):
            self.late.append(event.error)
        else:
            self.errors.append(event.error)
            if self._total > 1:
                log.info(f"failed: {event.job.name}: {event.error}")
