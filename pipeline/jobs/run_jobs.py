"""Do jobs on an executor: in order, again where a worker died, until all are done or time is up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from common.errors import OutOfTime, PipelineError
from common.progress import log, out_of_time, progress, told_by
from pipeline.jobs.job import Cost, Job
from pipeline.jobs.queue import Queue

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
            self._again_or_named(event)
        elif isinstance(event.error, OutOfTime):
            self.late.append(event.error)
        else:
            self.errors.append(event.error)
            if self._total > 1:
                log.info(f"failed: {event.job.name}: {event.error}")

    def _again_or_named(self, lost: Lost) -> None:
        self._losses[lost.job.name] += 1
        told, times = f"{lost.job.name}: its worker {lost.reason}", self._losses[lost.job.name]
        if times < MAX_TRIES:
            log.info(f"{told}; it goes on elsewhere")
            self.queue.put_back(lost.job)
            return
        self.errors.append(
            PipelineError(f"{told}, {times} times (out of memory?); the same command goes on")
        )
