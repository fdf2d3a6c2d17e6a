"""Which job comes next: one whose forerunners have ended, at the start of the longest way first."""

from collections.abc import Sequence
from functools import cache
from graphlib import TopologicalSorter

from pipeline.jobs.job import Job


class Queue:
    """Jobs that have not been begun.

    "Longest way first" (R. L. Graham's list scheduling by critical path, 1969) ends no later than
    twice the best order, and close to it where the longest job is short beside the whole.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.name: job for job in jobs}
        assert len(self._jobs) == len(jobs), "each job has a name of its own"
        tuple(TopologicalSorter({job.name: job.after for job in jobs}).static_order())  # no circle
        followers: dict[str, list[Job]] = {name: [] for name in self._jobs}
        for job in jobs:
            for name in job.after:
                followers[name].append(job)

        @cache
        def way_s(name: str) -> float:
            after = max((way_s(job.name) for job in followers[name]), default=0.0)
            return self._jobs[name].seconds + after

        self._order = sorted(self._jobs.values(), key=lambda job: -way_s(job.name))
        self._followers, self._left = followers, {job.name: set(job.after) for job in jobs}

    def take(self, *, gpu: bool, any_gpu: bool) -> Job | None:
        """Return the next job that a worker can begin now; None if there is none.

        Args:
            gpu: whether the worker has a GPU: then jobs that need one go first.
            any_gpu: whether any worker has; if none has, jobs need none either.
        """
        ready = [job for job in self._order if not self._left[job.name]]
        if any_gpu:
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
        """Note that a job is done: others may wait for it alone."""
        for follower in self._followers[job.name]:
            self._left[follower.name].discard(job.name)
