"""Who does jobs: this process, a pool of processes on this machine, or a Ray cluster."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.jobs.here import VISIBLE, InThisProcess, Processes, import_once
from pipeline.jobs.job import WORKER_BYTES, Job
from pipeline.jobs.run_jobs import Done, Executor, run_jobs

SOON_S = 20.0  # what takes less is done sooner than processes begin
SOON_BYTES, SOON_STEPS = 4 << 20, 200  # of files, and of networks: jobs of fewer hardly take more


@dataclass(frozen=True)
class Workers:
    """How many workers do the jobs of a command, and where.

    Attributes:
        n: at most so many at once; 1 = this process itself does all. None = one per GPU that the
            jobs have use for, and so many others that all cores are taken.
        ray: address of a Ray cluster, or "local" for one on this machine; None = no Ray.
    """

    n: int | None = 1
    ray: str | None = None

    def check(self) -> None:
        """Refuse a Ray cluster that does not answer, before work is done for it.

        Raises:
            UsageError: so, or Ray is not installed.
        """
        if self.ray is not None:
            from pipeline.jobs.ray_cluster import check_cluster

            check_cluster(self.ray)

    def expect(self, n_bytes: int, n_steps: int, threads: int) -> None:
        """Let processes get ready, where they will do jobs on files of so many bytes.

        Args:
            n_steps: of all networks that will be trained.
            threads: of the processor, that a job will have.
        """
        is_much = self.n is not None or n_bytes >= SOON_BYTES or n_steps >= SOON_STEPS
        if self.ray is None and self.n != 1 and is_much and granted()[0] > 1:
            import_once(threads)

    def do(self, jobs: Sequence[Job]) -> dict[str, Done]:
        """Do jobs; see `run_jobs`.

        Raises:
            UsageError: Ray is not installed, or its cluster cannot be reached.
            PipelineError, OutOfTime: as `run_jobs`.
        """
        return run_jobs(jobs, self._executor(jobs)) if jobs else {}

    def are_here(self, jobs: Sequence[Job]) -> bool:
        """Tell whether this process does such jobs itself, one after the other."""
        return _take_less(jobs) if self.ray else self._count(jobs, 0) == 1

    def _count(self, jobs: Sequence[Job], n_gpus: int) -> int:
        if self.n is None and _take_less(jobs):
            return 1
        return min(self.n or default_workers(jobs, n_gpus), max(1, len(jobs)))

    def _executor(self, jobs: Sequence[Job]) -> Executor:
        if self.ray is not None:
            from pipeline.jobs.ray_cluster import LOCAL, RayCluster

            at_most = self._count(jobs, 0) if self.ray == LOCAL else self.n
            return RayCluster(self.ray, at_most=at_most, threads=_threads(jobs))
        gpus = _gpus() if any(job.on_gpu for job in jobs) else []
        n = self._count(jobs, len(gpus))
        if n == 1:
            return InThisProcess(gpu=bool(gpus))
        return Processes([*gpus, *[None] * n][:n], threads=_threads(jobs))


HERE = Workers()


def _take_less(jobs: Sequence[Job]) -> bool:
    return sum(job.seconds for job in jobs) < SOON_S


def default_workers(jobs: Sequence[Job], n_gpus: int = 0) -> int:
    """Return how many workers take all GPUs and cores, as far as the memory suffices."""
    n_cores, n_bytes = granted()
    by_cores = n_gpus + (n_cores - n_gpus) // _threads(jobs)
    return max(n_gpus + 1, min(by_cores, n_bytes // WORKER_BYTES))


def granted(groups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Return how many cores and how many bytes of memory this process may use.

    Args:
        groups: what bounds a container: Linux's control groups, version 2.
    """
    n_cores = len(os.sched_getaffinity(0))
    n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max": no bound
        n_bytes = min(n_bytes, int((groups / "memory.max").read_text()))
    with suppress(OSError, ValueError):
        quota, period = map(int, (groups / "cpu.max").read_text().split())
        n_cores = min(n_cores, max(1, round(quota / period)))
    return n_cores, n_bytes


def _threads(jobs: Sequence[Job]) -> int:
    return max((job.threads for job in jobs), default=1)


def _gpus() -> list[str]:
    import torch

    visible = os.environ.get(VISIBLE)
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
