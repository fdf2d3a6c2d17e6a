"""Update the store, in which every graph is packed once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from common.errors import PipelineError, UnreadableError
from common.files import locked, sweep
from common.jobs.run_jobs import Job
from common.jobs.workers import INLINE, Workers
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
    """The state of one file in the store."""

    source: GraphFile
    stored: GraphFile | None  # the graph in the store; None if the source is damaged
    error: str | None = None  # the message about a damaged source
    is_new: bool = False  # whether this call has packed it


def pack_in_turn(files: Sequence[GraphFile], store: Path) -> list[str | None]:
    """Pack files into a store one by one, and return the fault of each, None if it is packed."""
    keep_freed_memory()
    return [_pack_one(file, store) for file in each(f"pack {len(files)} files", files)]


def file_weight(files: Sequence[GraphFile]) -> float:
    """Return the weight of a job that reads files, in training steps."""
    return sum(file_bytes(file.path) for file in files) / BYTES_PER_WEIGHT


def blocks_of(files: Sequence[GraphFile]) -> Iterator[list[GraphFile]]:
    """Split files into blocks of similar size in bytes. A large file is a block by itself."""
    block: list[GraphFile] = []
    n_bytes = 0
    for file in files:
        n_file_bytes = file_bytes(file.path)
        if block and (n_bytes + n_file_bytes > BLOCK_BYTES or len(block) == BLOCK_FILES):
            yield block
            block, n_bytes = [], 0
        block.append(file)
        n_bytes += n_file_bytes
    if block:
        yield block


def prepare(
    files: Sequence[GraphFile], store: Path, *, workers: Workers = INLINE
) -> list[Prepared]:
    """Pack the files that the store lacks, or has from another source.

    A killed call resumes, and the store ends with the same bytes. Files that `name_faults` lists
    are left out. If another process prepares the same store, this call waits for it.
    """
    faults: dict[GraphFile, str | None] = dict(name_faults(files))
    good = [file for file in files if file not in faults]
    with locked(store / LOCK):
        for collection, split in product(COLLECTIONS, SPLITS):
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
        if todo and workers.are_inline(jobs):
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
    """Pack one file. If it is damaged, remove its version in the store and return the message."""
    target = stored_file(store, file)
    try:
        store_graph(file, target)
        return None
    except UnreadableError:
        raise
    except PipelineError as error:
        if str(error).startswith(f"{target.path}: "):
            raise
        line = str(error)
    except MemoryError:
        line = f"{file.path}: does not fit into memory"
    target.path.unlink(missing_ok=True)
    return line


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks of up to 30 MiB for the next chunk.

    glibc returns a block to the system unless a larger one has been freed before (mallopt(3),
    M_MMAP_THRESHOLD). New zeroed pages would cost a third of the time to inflate a chunk.
    """
    np.empty(30 << 20, np.uint8)  # freed at once, and never touched


def stored_graphs(
    data_dir: Path,
    *,
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
    store: Path | None = None,
    workers: Workers = INLINE,
) -> list[GraphFile]:
    """Pack the graphs of a data folder, and list their files in the store; None is its default."""
    files = find_graphs(data_dir, collections=collections, splits=splits)
    graphs = []
    for entry in prepare(files, store or default_store_dir(data_dir), workers=workers):
        if entry.stored is None:
            raise PipelineError(f"{entry.error}; `audit` lists all damaged files")
        graphs.append(entry.stored)
    return graphs


def file_bytes(path: Path) -> int:
    """Return the size of a file; 0 if it is missing."""
    return path.stat().st_size if path.is_file() else 0
