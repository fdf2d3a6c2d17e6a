"""Which job comes next: one whose forerunners have ended, at the start of the longest way first."""

from collections.abc import Sequence
from graphlib import TopologicalSorter

from pipeline.jobs.job import Job


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
