"""The official tree: its collections, splits and folders.

DIR/npz/layout/{xla,nlp}/{default,random}/{train,valid,test}/*.npz
DIR/npz/tile/xla/{train,valid,test}/*.npz
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import PipelineError, UsageError, nearest, one_of
from common.files import missing_path

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Collection:
    """One of the dataset's five collections; its name is the prefix of submission IDs."""

    name: str  # such as "layout:xla:default"

    @property
    def folder(self) -> str:
        """Return the path below npz/: "layout/xla/default"."""
        return self.name.replace(":", "/")

    @property
    def kind(self) -> str:
        """Return "layout" or "tile"."""
        return self.name.split(":", 1)[0]

    @property
    def slug(self) -> str:
        """Return the name as a folder name: "layout-xla-default"."""
        return self.name.replace(":", "-")


# The order is that of the competition's sample submission.
COLLECTIONS = (
    Collection("tile:xla"),
    Collection("layout:xla:default"),
    Collection("layout:xla:random"),
    Collection("layout:nlp:default"),
    Collection("layout:nlp:random"),
)
KINDS = ("layout", "tile")
LAYOUT_COLLECTIONS = tuple(collection for collection in COLLECTIONS if collection.kind == "layout")
# All layout collections as one, for models that learn from all of them.
LAYOUTS = Collection("layout")
FOLDERS = tuple(f"{collection.folder}/{split}" for collection in COLLECTIONS for split in SPLITS)
TREES = ("npz", "npz_all/npz")  # the second as Kaggle unpacks it
NOT_UTF8 = re.compile(r"[\ud800-\udfff]")  # in a name whose bytes are something else
NO_ID = re.compile(r'[\s,"\ud800-\udfff]')  # in a cell of a CSV file, as Kaggle reads it
MAX_DEPTH = 6  # folders below npz/, in the search for misplaced files
MAX_NAME_BYTES = 200  # a file system takes 255; the store adds an ending, and a temporary one


@dataclass(frozen=True)
class GraphFile:
    """The file of one graph, with its place in the dataset."""

    collection: Collection
    split: str
    name: str
    path: Path

    @property
    def submission_id(self) -> str:
        """Return the ID of the graph's submission row: collection, colon, file stem."""
        return f"{self.collection.name}:{self.name}"

    @property
    def part(self) -> str:
        """Return the collection and the split: "layout:xla:default/train"."""
        return f"{self.collection.name}/{self.split}"

    @property
    def data_dir(self) -> Path:
        """Return the folder that contains npz/, for a file of `file_from_path`."""
        parents = self.path.parents
        return parents[min(3 + self.collection.folder.count("/"), len(parents) - 1)]


def names_beside(path: Path) -> Path:
    """Return the file next to a graph's npz that may name its instructions, one on each line."""
    return path.with_suffix(".names.txt")


def collection_named(name: str) -> Collection:
    """Return a collection by its name or slug."""
    for collection in COLLECTIONS:
        if name in (collection.name, collection.slug):
            return collection
    names = [collection.name for collection in COLLECTIONS]
    raise UsageError(f"collection '{name}': no such collection; known: {one_of(name, names)}")


def collections_named(names: str | None) -> tuple[Collection, ...]:
    """Return the collections of a list, such as "layout:xla,tile", in the dataset's order."""
    if names is None:
        return COLLECTIONS
    result = set[Collection]()
    for name in map(str.strip, names.split(",")):
        start = f"{name}:".replace("-", ":")
        below = [place for place in COLLECTIONS if f"{place.name}:".startswith(start)]
        result |= set(below or [collection_named(name)])
    return tuple(collection for collection in COLLECTIONS if collection in result)


def splits_named(names: str | None) -> tuple[str, ...]:
    """Return the splits of a comma-separated list, in order; all for None."""
    split_list = SPLITS if names is None else [name.strip() for name in names.split(",")]
    check_splits(split_list)
    return tuple(split for split in SPLITS if split in split_list)


def check_splits(splits: Sequence[str]) -> None:
    unknown = [split for split in splits if split not in SPLITS]
    if unknown:
        raise UsageError(f"split '{unknown[0]}': expected one of {one_of(unknown[0], SPLITS)}")


def find_graphs(
    data_dir: Path,
    *,
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
) -> list[GraphFile]:
    """List graph files by collection, split and name.

    Missing collections and splits are left out. Hidden files are ignored.
    """
    check_splits(splits)
    root = npz_root(data_dir)
    files = [
        GraphFile(collection, split, path.stem, path)
        for collection in collections
        for split in splits
        for path in sorted(npz_files(root / collection.folder / split))
    ]
    if not files:
        names = ", ".join(collection.name for collection in collections)
        splits_with_graphs = [split for split in SPLITS if has_graphs(root, (split,), collections)]
        only = f" (only in {', '.join(splits_with_graphs)})" if splits_with_graphs else ""
        raise PipelineError(
            f"{root}: no graph of {names} found in {', '.join(splits)}{only}; expected files such "
            f"as {collections[0].folder}/{splits[0]}/<graph>.npz"
            + "".join(f"; {stray}" for stray in stray_folders(data_dir)[:1])
        )
    return files


def npz_files(folder: Path) -> Iterator[Path]:
    """Yield the npz files of a folder, without hidden ones, such as the `._x.npz` of macOS."""
    return folder.glob("[!.]*.npz")


def has_graphs(
    root: Path,
    splits: Sequence[str] = SPLITS,
    collections: Sequence[Collection] = COLLECTIONS,
) -> bool:
    """Return whether a folder `npz` has a graph of these splits and collections."""
    return any(any(npz_files(root / c.folder / split)) for c in collections for split in splits)


def npz_root(data_dir: Path) -> Path:
    """Return DIR/npz, or DIR/npz_all/npz if only that one has graphs."""
    if not data_dir.is_dir():
        raise missing_path(data_dir, "a folder that contains npz/")
    roots = [data_dir / tree for tree in TREES if (data_dir / tree).is_dir()]
    if roots:
        return next(filter(has_graphs, roots), roots[0])
    hint = f"; is {data_dir.parent} meant?" * (data_dir.name == "npz")
    raise PipelineError(
        f"{data_dir}: contains no npz/ (nor npz_all/npz/){hint}; expected files such as "
        "npz/layout/xla/default/train/<graph>.npz"
    )


def missing_parts(files: Sequence[GraphFile], *, splits: Sequence[str] = SPLITS) -> list[str]:
    """Name each "collection/split" of the official tree without a graph in `files`."""
    present = {file.part for file in files}
    parts = [f"{collection.name}/{split}" for collection in COLLECTIONS for split in splits]
    return [part for part in parts if part not in present]


def stray_folders(data_dir: Path) -> list[str]:
    """Describe folders with npz files that no command reads, and suggest the right folder."""
    root, messages = npz_root(data_dir), []
    # Not rglob, which follows no links to folders.
    paths = (path for depth in range(MAX_DEPTH + 1) for path in root.glob("*/" * depth + "*.npz"))
    counts = Counter(path.parent for path in paths if path.name[0] != ".")
    for folder, n_files in sorted(counts.items()):
        place = folder.relative_to(root).as_posix()
        if place not in FOLDERS:
            near = nearest(place, FOLDERS) or "layout/xla/default/train"
            messages.append(f"{folder}: {n_files} npz files that nothing reads; is {near} meant?")
    return messages


def name_faults(files: Sequence[GraphFile]) -> list[tuple[GraphFile, str]]:
    """List the files that a run refuses because of their names.

    A name may be too long for the store or no UTF-8 text. In valid and test splits it must be
    possible in a submission. A name may occur once per collection. Rows and reports have collection
    and name as their key, and a graph that is in train and in another split leaks.
    """
    first_by_id, faults = dict[str, GraphFile](), []
    for file in files:
        first, fault = first_by_id.setdefault(file.submission_id, file), ""
        if len(os.fsencode(file.name)) > MAX_NAME_BYTES:
            fault = f"the name is too long; expected at most {MAX_NAME_BYTES} bytes"
        elif (NOT_UTF8 if file.split == "train" else NO_ID).search(file.name):
            fault = "no row of a submission can have this name; expected UTF-8 text without "
            fault += "blanks, commas and quotes"
        elif first is not file:
            fault = f"the name is already in {file.collection.name} ({first.path}); expected "
            fault += "each graph once, in one split"
        if fault:
            faults.append((file, f"{file.path}: {fault}; rename or remove it"))
    return faults


def file_from_path(path: Path) -> GraphFile:
    """Find the place of a file in the tree by the names of its folders, also behind links."""
    for place in (path.absolute(), path.resolve()):
        parts = place.parts
        for collection in COLLECTIONS:
            folder = tuple(collection.folder.split("/"))
            if parts[-2 - len(folder) : -2] == folder and parts[-2] in SPLITS:
                return GraphFile(collection, parts[-2], place.stem, place)
    raise PipelineError(
        f"{path}: cannot tell its collection from its folders; expected "
        "…/layout/xla/default/<split>/<graph>.npz or the like, or pass --collection"
    )
