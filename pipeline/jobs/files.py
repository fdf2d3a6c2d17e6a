"""Making, packing and auditing files as jobs, several files each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data.audit import Auditor, AuditRow, rows_of
from data.graph_store.prepare import Packer, Prepared, file_bytes, pack_in_turn
from data.graph_store.stored_graph import stored_file
from data.synthetic.write import PlannedGraph, write_graphs
from data.tree import GraphFile
from pipeline.jobs.job import Job
from pipeline.jobs.workers import Workers

BLOCK_BYTES, BLOCK_FILES = 16 << 20, 200
# One thread of an AMD EPYC, per byte of the files from outside: a law good to a factor of two.
PACK_S, AUDIT_S = 5e-8, 5e-8
MAKE_S, MADE_KERNELS = 2e-9, 100  # per byte of configs inflated; kernels in one job


def packing(workers: Workers) -> Packer:
    """Return what packs files on these workers."""

    def pack(files: Sequence[GraphFile], store: Path) -> list[str | None]:
        jobs = [
            Job(
                f"pack {block[0].submission_id} and {len(block) - 1} more",
                pack_in_turn,
                (block, store),
                seconds=PACK_S * _bytes(block),
                reads=tuple(file.path for file in block),
                makes=tuple(stored_file(store, file).path for file in block),
            )
            for block in _blocks(files)
        ]
        return pack_in_turn(files, store) if workers.are_here(jobs) else _in_order(jobs, workers)

    return pack


def auditing(workers: Workers) -> Auditor:
    """Return what audits files on these workers."""

    def look(entries: Sequence[Prepared], seed: int) -> list[AuditRow]:
        of = {entry.source: entry for entry in entries}
        jobs = [
            Job(
                f"audit {block[0].submission_id} and {len(block) - 1} more",
                rows_of,
                ([of[file] for file in block], seed),
                seconds=AUDIT_S * _bytes(block),
                reads=tuple(s.path for s in (of[file].stored for file in block) if s),
            )
            for block in _blocks([entry.source for entry in entries])
        ]
        is_here = workers.are_here(jobs)
        return rows_of(entries, seed) if is_here else _in_order(jobs, workers)

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
                makes=tuple(graph.file(tree).path for graph in block),
            )
            for block in [*layouts, *blocks]
        ]
    )


def _in_order(jobs: Sequence[Job], workers: Workers) -> list[Any]:
    done = workers.do(jobs)
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
