"""How long jobs would take elsewhere: queue and loop are the real ones, the clock is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from common.progress import watched_by
from pipeline.jobs.job import Cost, Job
from pipeline.jobs.run_jobs import Done, Event, Executor, run_jobs, ways_s

ALMOST = 0.97  # of all seconds: then the longest way is why it takes no less


@dataclass(frozen=True)
class Simulated:
    """What jobs would take on some workers.

    Attributes:
        seconds: until the last one is done.
        efficiency: the share of its time in which a GPU does what needs one; without GPUs, in
            which a worker does something.
        limit: jobs of which each waits for the one before, if these are why all take no less; else
            some workers idle at the end, or those without a GPU have most to do.
    """

    seconds: float
    efficiency: float
    limit: list[str]


def simulate(jobs: Sequence[Job], workers: Sequence[bool]) -> Simulated:
    """Let each job take the seconds that it says; `workers`: of each, whether it has a GPU."""
    clockwork, n_gpus, ways = Clockwork(workers), sum(workers), ways_s(jobs)
    with watched_by(None):
        run_jobs(jobs, clockwork)
    useful_s = sum(job.seconds for job in jobs if job.on_gpu or not n_gpus)
    whole_s = (n_gpus or len(workers)) * clockwork.now_s
    limit, ready = list[str](), [job.name for job in jobs if not job.after]
    while ready and max(ways.values()) >= ALMOST * clockwork.now_s:
        limit.append(max(ready, key=ways.__getitem__))
        ready = [job.name for job in jobs if limit[-1] in job.after]
    return Simulated(clockwork.now_s, useful_s / whole_s if whole_s else 1.0, limit)


class Clockwork(Executor):
    """An executor whose clock goes on to the next end of a job."""

    def __init__(self, workers: Sequence[bool]) -> None:
        self._idle, self._n_gpus = list(workers), sum(workers)
        self._running: list[tuple[float, int, Job, bool]] = []
        self.now_s, self._begun = 0.0, 0

    def free(self) -> Sequence[bool]:
        return list(self._idle)

    def n_gpus(self) -> int:
        return self._n_gpus

    def begin(self, job: Job, *, gpu: bool) -> None:
        self._idle.remove(gpu)
        self._begun += 1
        heappush(self._running, (self.now_s + job.seconds, self._begun, job, gpu))

    def events(self) -> Sequence[Event]:
        self.now_s, _, job, gpu = heappop(self._running)
        self._idle.append(gpu)
        return [Done(job, None, Cost(job.seconds, job.seconds, None))]
