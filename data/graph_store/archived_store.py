"""A whole store sent elsewhere: every graph compressed into a folder, and such a folder unpacked.

FOLDER/{layout/xla/default,…,tile/xla}/{train,valid,test}/GRAPH.safetensors.zst
"""

from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError
from data.graph_store.archived_graph import (
    SHIPPED_SUFFIX,
    is_shipped,
    is_unpacked,
    ship,
    shipped_path,
    unpack,
)
from data.graph_store.files import stored_file
from data.graph_store.prepare import Prepared, Progress, alone
from data.tree import COLLECTIONS, SPLITS, GraphFile


def find_shipped(folder: Path) -> list[GraphFile]:
    """List the compressed graphs below `folder`, by collection, split and name.

    Raises:
        PipelineError: there is none.
    """
    found = [
        GraphFile(collection, split, path.name.removesuffix(SHIPPED_SUFFIX), path)
        for collection in COLLECTIONS
        for split in SPLITS
        for path in sorted((folder / collection.folder / split).glob(f"*{SHIPPED_SUFFIX}"))
        if not path.name.startswith(".")
    ]
    if not found:
        raise PipelineError(
            f"{folder}: no archived graph found; expected files such as "
            f"layout/xla/default/train/<graph>{SHIPPED_SUFFIX}, written by `prepare --archive`"
        )
    return found


def ship_store(
    prepared: Sequence[Prepared], folder: Path, *, progress: Progress | None = None
) -> None:
    """Compress every graph of a store into `folder`, unless it is there already.

    Nobody else may write to the store or the folder meanwhile.

    Raises:
        PipelineError: a stored file is damaged, or the folder cannot be written.
    """
    for left in folder.rglob(f".*{SHIPPED_SUFFIX}.*.tmp"):  # of a call that was killed
        left.unlink(missing_ok=True)
    good = [(entry.source, entry.stored.path) for entry in prepared if entry.stored]
    for number, (source, stored) in enumerate(good, start=1):
        path = shipped_path(folder, source)
        if not is_shipped(stored, path):
            ship(stored, path)
        if progress:
            progress("archive", number, len(good))


def unpack_store(folder: Path, store: Path, *, progress: Progress | None = None) -> list[Prepared]:
    """Unpack every graph below `folder` into the store, unless it is there already.

    A call that was killed goes on with the next one. Another process that works in the same store
    is waited for.

    Returns:
        One entry per compressed file, which takes the source's place in it.

    Raises:
        PipelineError: there is no such file, or the store cannot be written.
    """
    files = find_shipped(folder)
    done = []
    with alone(store):
        for number, file in enumerate(files, start=1):
            done.append(_unpacked(file, stored_file(store, file)))
            if progress:
                progress("unpack", number, len(files))
    return done


def _unpacked(file: GraphFile, stored: GraphFile) -> Prepared:
    """Unpack one file; a damaged one gets an entry that says so."""
    try:
        is_new = not is_unpacked(file.path, stored.path)
        if is_new:
            unpack(file.path, stored)
    except PipelineError as error:
        if not str(error).startswith(f"{file.path}: "):
            raise
        return Prepared(file, None, str(error))
    return Prepared(file, stored, is_new=is_new)
