"""From a data folder to graphs of the store, packed on the way where they are not there yet."""

import os
from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError
from common.settings import default_store_dir
from data.graph_store.prepare import Prepared, Progress, prepare
from data.tree import COLLECTIONS, SPLITS, Collection, GraphFile, find_graphs

MAX_WORKERS = 4  # each takes up to 350 MiB


def stored_graphs(
    data_dir: Path,
    *,
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
    store: Path | None = None,
    progress: Progress | None = None,
) -> list[GraphFile]:
    """List graphs as files of the store.

    Args:
        store: the store's folder; None for the data folder's own below the default place.

    Raises:
        PipelineError: no such graph, a damaged file (the first is named), or no space.
    """
    files = find_graphs(data_dir, collections=collections, splits=splits)
    prepared = prepare_tree(files, data_dir, store=store, progress=progress)
    found = []
    for entry in prepared:
        if entry.stored is None:
            raise PipelineError(f"{entry.error}; `audit` lists all damaged files")
        found.append(entry.stored)
    return found


def prepare_tree(
    files: Sequence[GraphFile],
    data_dir: Path,
    *,
    store: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Prepared]:
    """Bring the store of a data folder up to date for some of its files; see `prepare`."""
    return prepare(
        files,
        store or default_store_dir(data_dir),
        workers=workers or default_workers(),
        progress=progress,
    )


def default_workers() -> int:
    """Return how many files to pack at once: one per core that we may use, at most 4."""
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        n_cores = os.cpu_count() or 1
    return min(n_cores, MAX_WORKERS)
