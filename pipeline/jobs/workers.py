"""Who does jobs (this process, a pool of processes on this machine, or a Ray cluster).

And what is done so with the files of a tree, several in a job: they are made, packed and audited.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.machine import granted
from data.audit import Auditor, AuditRow, rows_of
from data.graph_store.prepare import Packer, Prepared, file_bytes, pack_in_turn
from data.synthetic.write import PlannedGraph, write_graphs
from data.tree import GraphFile
from pipeline.jobs.here import VISIBLE, InThisProcess, Processes, import_once
from pipeline.jobs.run_jobs import WORKER_BYTES, Done, Executor, Job, run_jobs

SOON_S = 20.0  # what takes less is done sooner than processes begin
SOON_BYTES, SOON_STEPS = 4 << 20, 200  # of files, and of networks: jobs of fewer hardly take more
BLOCK_BYTES, BLOCK_FILES = 16 << 20, 200  # of one job
# One thread of an AMD EPYC, per byte of the files from outside: a law good to a factor of two.
PACK_S, AUDIT_S = 5e-8, 5e-8
MAKE_S, MADE_KERNELS = 2e-9, 100  # per byte of configs inflated; kernels in one job


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

    def do(self, jobs: Sequence[Job], folder: Path) -> dict[str, Done]:
        """Do jobs; see `run_jobs`.

        Args:
            jobs: Jobs with different names.
            folder: Folder that the jobs write to. All machines of a Ray cluster must see it.

        Raises:
            UsageError: Ray is not installed, or its cluster cannot be reached.
            PipelineError, OutOfTime: as `run_jobs`.
        """
        return run_jobs(jobs, self._executor(jobs, folder)) if jobs else {}

    def are_here(self, jobs: Sequence[Job]) -> bool:
        """Tell whether this process does such jobs itself, one after the other."""
        return _take_less(jobs) if self.ray else self._count(jobs, 0) == 1

    def _count(self, jobs: Sequence[Job], n_gpus: int) -> int:
        if self.n is None and _take_less(jobs):
            return 1
        return min(self.n or default_workers(jobs, n_gpus), max(1, len(jobs)))

    def _executor(self, jobs: Sequence[Job], folder: Path) -> Executor:
        if self.ray is not None:
            from pipeline.jobs.ray_cluster import LOCAL, RayCluster

            at_most = self._count(jobs, 0) if self.ray == LOCAL else self.n
            return RayCluster(self.ray, at_most=at_most, folder=folder, threads=_threads(jobs))
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


def _threads(jobs: Sequence[Job]) -> int:
    return max((job.threads for job in jobs), default=1)


def _gpus() -> list[str]:
    import torch

    visible = os.environ.get(VISIBLE)
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def packing(workers: Workers) -> Packer:
    def pack(files: Sequence[GraphFile], store: Path) -> list[str | None]:
        jobs = [
            Job(
                f"pack {block[0].submission_id} and {len(block) - 1} more",
                pack_in_turn,
                (block, store),
                seconds=PACK_S * _bytes(block),
            )
            for block in _blocks(files)
        ]
        is_here = workers.are_here(jobs)
        return pack_in_turn(files, store) if is_here else _in_order(jobs, workers, store)

    return pack


def auditing(workers: Workers, store: Path) -> Auditor:
    def look(entries: Sequence[Prepared], seed: int) -> list[AuditRow]:
        of = {entry.source: entry for entry in entries}
        jobs = [
            Job(
                f"audit {block[0].submission_id} and {len(block) - 1} more",
                rows_of,
                ([of[file] for file in block], seed),
                seconds=AUDIT_S * _bytes(block),
            )
            for block in _blocks([entry.source for entry in entries])
        ]
        is_here = workers.are_here(jobs)
        return rows_of(entries, seed) if is_here else _in_order(jobs, workers, store)

    return look


def make(graphs: Sequence[PlannedGraph], tree: Path, seed: int, workers: Workers) -> None:
    """Write synthetic graphs into a tree on these workers."""
    layouts = [[graph] for graph in graphs if graph.size.n_configurable]
    kernels = [graph for graph in graphs if not graph.size.n_configurable]
    blocks = [kernels[i : i + MADE_KERNELS] for i in range(0, len(kernels), MADE_KERNELS)]
    workers.do(
        [
            Job(
                f"make {block[0].file(tree).submission_id} and {len(block) - 1} more",
                write_graphs,
                (tree, seed, block),
                seconds=len(block) / 10 + MAKE_S * block[0].size.config_bytes,
            )
            for block in [*layouts, *blocks]
        ],
        tree,
    )


def _in_order(jobs: Sequence[Job], workers: Workers, store: Path) -> list[Any]:
    done = workers.do(jobs, store)
    return [value for job in jobs for value in done[job.name].value]


def _bytes(files: Sequence[GraphFile]) -> int:
    return sum(file_bytes(file.path) for file in files)


def _blocks(files: Sequence[GraphFile]) -> Iterator[list[GraphFile]]:
    """Cut files into stretches of about as many bytes; a large file is one by itself."""
    block: list[GraphFile] = []
    n_bytes = 0
    for file in files:
        own = file_bytes(file.path)
        if block and (n_bytes + own > BLOCK_BYTES or len(block) == BLOCK_FILES):
            yield block
            block, n_bytes = [], 0
        block.append(file)
        n_bytes += own
    if block:
        yield block
