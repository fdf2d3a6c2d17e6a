"""Bring the store up to date: every graph packed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from common.errors import PipelineError
from common.files import locked, sweep
from common.jobs.run_jobs import Job
from common.jobs.workers import HERE, Workers
from common.progress import each
from common.settings import default_store_dir
from data.graph_store.stored_graph import STORE_SUFFIX, is_fresh, store_graph, stored_file
from data.tree import COLLECTIONS, SPLITS, Collection, GraphFile, find_graphs, name_faults

LOCK = ".lock"

# Limits of one job on files.
BLOCK_BYTES, BLOCK_FILES = 16 << 20, 200
# About a tenth of a second on one core, like a small training step.
BYTES_PER_WEIGHT = 2 << 20


@dataclass(frozen=True)
class Prepared:
    """What became of one file."""

    source: GraphFile
    stored: GraphFile | None  # the graph in the store; None if the source is damaged
    error: str | None = None  # the line that says what is damaged
    is_new: bool = False  # whether it was packed now; else it was there


def pack_in_turn(files: Sequence[GraphFile], store: Path) -> list[str | None]:
    """Pack files into a store; return what is wrong with each, or None; raises as `prepare`."""
    keep_freed_memory()
    return [_pack_one(file, store) for file in each(f"pack {len(files)} files", files)]


def file_weight(files: Sequence[GraphFile]) -> float:
    """Return the weight of a job that reads these files."""
    return sum(file_bytes(file.path) for file in files) / BYTES_PER_WEIGHT


def blocks_of(files: Sequence[GraphFile]) -> Iterator[list[GraphFile]]:
    """Cut files into blocks of about as many bytes. A large file is a block of its own."""
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


def prepare(files: Sequence[GraphFile], store: Path, *, workers: Workers = HERE) -> list[Prepared]:
    """Pack files that the store lacks, or holds from another source; one entry per file, in order.

    A call that was killed goes on with the next one, and the store ends with the same bytes.
    Files that `name_faults` lists are left out. Another process that prepares the same store is
    waited for. PipelineError: it cannot be written.
    """
    faults: dict[GraphFile, str | None] = dict(name_faults(files))
    good = [file for file in files if file not in faults]
    with locked(store / LOCK):
        for collection, split in product(COLLECTIONS, SPLITS):  # what a killed process left
            sweep(store / collection.folder / split, f".*{STORE_SUFFIX}.*.tmp")
        todo = [file for file in good if not is_fresh(stored_file(store, file), file)]
        jobs = [
            Job(
                f"pack {block[0].submission_id} and {len(block) - 1} more",
                pack_in_turn,
                (block, store),
                weight=file_weight(block),
            )
            for block in blocks_of(todo)
        ]
        lines: list[str | None] = []
        if todo and workers.are_here(jobs):
            lines = pack_in_turn(todo, store)
        elif todo:
            lines = workers.do_in_order(jobs, store)
        errors = faults | dict(zip(todo, lines, strict=True))
    return [
        Prepared(
            source=file,
            stored=None if errors.get(file) else stored_file(store, file),
            error=errors.get(file),
            is_new=file in errors and errors[file] is None,
        )
        for file in files
    ]


def _pack_one(file: GraphFile, store: Path) -> str | None:
    """Pack one file, or leave nothing older in its place and return what is wrong with it."""
    target = stored_file(store, file)
    try:
        store_graph(file, target)
        return None
    except PipelineError as error:
        if str(error).startswith(f"{target.path}: "):
            raise
        line = str(error)
    except MemoryError:
        line = f"{file.path}: does not fit into memory"
    target.path.unlink(missing_ok=True)
    return line


def keep_freed_memory() -> None:
    """Make the C library keep blocks of up to 30 MiB that are freed, for the next chunk.

    glibc hands a block back to the system unless a larger one has been freed before (mallopt(3),
    M_MMAP_THRESHOLD); getting zeroed pages anew costs a third of the time to inflate a chunk.
    """
    np.empty(30 << 20, np.uint8)  # freed at once, and never touched


def stored_graphs(
    data_dir: Path,
    *,
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
    store: Path | None = None,
    workers: Workers = HERE,
) -> list[GraphFile]:
    """List graphs as files of a store, by default the data folder's own; raises as `prepare`.

    A damaged file is a PipelineError that names the first.
    """
    files = find_graphs(data_dir, collections=collections, splits=splits)
    found = []
    for entry in prepare(files, store or default_store_dir(data_dir), workers=workers):
        if entry.stored is None:
            raise PipelineError(f"{entry.error}; `audit` lists all damaged files")
        found.append(entry.stored)
    return found


def file_bytes(path: Path) -> int:
    """Return a file's length; 0 without one."""
    return path.stat().st_size if path.is_file() else 0
