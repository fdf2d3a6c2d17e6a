"""The workers of a command: this process, a pool of processes on this machine, or a Ray cluster."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.jobs.local_executors import VISIBLE, InlineExecutor, Processes, import_once
from common.jobs.run_jobs import Done, Executor, Job, run_jobs
from common.machine import granted

# Jobs of a smaller total weight take less time than the start of processes.
SHORT_WEIGHT = 200


@dataclass(frozen=True)
class Workers:
    """The number and the place of a command's workers.

    Attributes:
        n: Maximum number of workers; 1 for this process only. None for one per GPU that the jobs
            use, and others for the remaining cores.
        ray: Address of a Ray cluster, or "local" for one on this machine; None without Ray.
    """

    n: int | None = 1
    ray: str | None = None

    def check(self) -> None:
        """Raise a UsageError if Ray is not installed, or if its cluster does not answer."""
        if self.ray is not None:
            from common.jobs.ray_cluster import check_cluster

            check_cluster(self.ray)

    def prepare(self, weight: float, threads: int) -> None:
        """Start to load libraries for worker processes, if long jobs will need processes.

        The libraries load on one core while this process packs and checks data on another one.
        """
        is_long = self.n != 1 and weight >= SHORT_WEIGHT
        if self.ray is None and is_long and granted()[0] > 1:
            import_once(threads)

    def do(self, jobs: Sequence[Job], folder: Path) -> dict[str, Done]:
        """Do jobs, see `run_jobs`.

        Args:
            folder: Folder that the jobs write to. All machines of a Ray cluster must see it.
        """
        return run_jobs(jobs, self._executor(jobs, folder)) if jobs else {}

    def do_in_order(self, jobs: Sequence[Job], folder: Path) -> list[Any]:
        """Do jobs that return lists, and concatenate the lists in the order of the jobs."""
        results = self.do(jobs, folder)
        return [value for job in jobs for value in results[job.name].value]

    def are_inline(self, jobs: Sequence[Job]) -> bool:
        """Return whether this process would do such jobs itself, one after the other."""
        return _are_short(jobs) if self.ray else self._count(jobs, 0) == 1

    def _count(self, jobs: Sequence[Job], n_gpus: int) -> int:
        if self.n is None and _are_short(jobs):
            return 1
        return min(self.n or default_workers(jobs, n_gpus), max(1, len(jobs)))

    def _executor(self, jobs: Sequence[Job], folder: Path) -> Executor:
        if self.ray is not None:
            from common.jobs.ray_cluster import LOCAL, RayCluster

            at_most = self._count(jobs, 0) if self.ray == LOCAL else self.n
            return RayCluster(self.ray, at_most=at_most, folder=folder, threads=_threads(jobs))
        gpus = _gpus() if any(job.on_gpu for job in jobs) else []
        n = self._count(jobs, len(gpus))
        if n == 1:
            return InlineExecutor(gpu=bool(gpus))
        return Processes([*gpus, *[None] * n][:n], threads=_threads(jobs))


INLINE = Workers()


def _are_short(jobs: Sequence[Job]) -> bool:
    return sum(job.weight for job in jobs) < SHORT_WEIGHT


def default_workers(jobs: Sequence[Job], n_gpus: int = 0) -> int:
    """Return the number of workers that use all GPUs and cores, as far as the memory suffices."""
    n_cores, n_bytes = granted()
    by_cores = n_gpus + (n_cores - n_gpus) // _threads(jobs)
    return max(n_gpus + 1, min(by_cores, n_bytes // max(job.n_bytes for job in jobs)))


def _threads(jobs: Sequence[Job]) -> int:
    return max((job.threads for job in jobs), default=1)


def _gpus() -> list[str]:
    import torch

    visible = os.environ.get(VISIBLE)
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]
