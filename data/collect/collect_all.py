"""Measure several graphs into one tree, on one core or on several at once."""

import contextvars
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import OutOfTime, UsageError
from common.locks import alone_in
from common.progress import log, out_of_time
from data.collect.collect import Outcome, collect_graph
from data.collect.job import JOURNALS, Job
from data.collect.measuring.session import ProgramFailed

MAX_FAILED_AT_START = 3  # so many programs that cannot be opened, and no other, are enough


def collect_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    remeasure: bool = False,
    workers: int = 1,
) -> list[Outcome]:
    """Measure graphs until the time is over; return those that are done, in the order of `jobs`.

    What is done at any moment is a valid tree; the same call goes on. Of several graphs, one that
    cannot be opened is logged and passed over, and each that is done is logged as well.

    Args:
        remeasure: see `collect_graph`.
        workers: graphs measured at once, each on a core of its own.

    Raises:
        UsageError: a graph is there already, measured with other options; more workers than
            cores; or another process measures into `out`.
        PipelineError: no graph can be opened, or the disk is full.
    """
    cores = _cores(workers)
    crew = _Crew(iter(enumerate(jobs)), len(jobs))

    def work(core: int | None) -> None:
        for number, job in crew.jobs():
            try:
                outcome = collect_graph(
                    job, out, remeasure=remeasure, is_over=crew.is_over, core=core
                )
            except OutOfTime:
                return
            except ProgramFailed as failure:
                crew.pass_over(failure)
                continue
            crew.add(number, outcome)

    with alone_in(out / JOURNALS), ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(contextvars.copy_context().run, work, core) for core in cores]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            crew.stop()  # after a failure or Ctrl-C the others end with the visit in hand
        for future in running:
            future.result()
    return [crew.outcomes[number] for number in sorted(crew.outcomes)]


@dataclass
class _Crew:
    """What the workers share: the jobs that are left, and what became of the others."""

    _left: Iterator[tuple[int, Job]]
    _n_jobs: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    _n_failed: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def jobs(self) -> Iterator[tuple[int, Job]]:
        """Yield jobs that no other worker has taken, until there is none."""
        while not self.is_over():
            with self._lock:
                taken = next(self._left, None)
            if taken is None:
                return
            yield taken

    def is_over(self) -> bool:
        """Tell whether nothing new is to be begun."""
        return self._stopped.is_set() or out_of_time()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped.set()

    def add(self, number: int, outcome: Outcome) -> None:
        """Take note of a graph that is done."""
        with self._lock:
            self.outcomes[number] = outcome
            if self._n_jobs > 1:
                log.info(f"{len(self.outcomes)}/{self._n_jobs}  {outcome.line()}")

    def pass_over(self, failure: ProgramFailed) -> None:
        """Take note of a program that cannot be opened.

        Raises:
            ProgramFailed: there is no other, or several and none that worked.
        """
        with self._lock:
            self._n_failed += 1
            if self._n_jobs == 1 or (self._n_failed >= MAX_FAILED_AT_START and not self.outcomes):
                raise failure
            log.info(f"left out: {failure}")


def _cores(workers: int) -> list[int | None]:
    """Return a core for each worker; a single one looks for the idlest itself.

    Raises:
        UsageError: there are fewer cores: programs on one core would disturb each other.
    """
    if workers == 1:
        return [None]
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError(f"--workers {workers}: this system cannot pin processes; expected 1")
    cores = sorted(os.sched_getaffinity(0))
    if workers > len(cores):
        raise UsageError(
            f"--workers {workers}: expected at most {len(cores)}, the cores of this machine"
        )
    return list(cores[:workers])
