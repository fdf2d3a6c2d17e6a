"""The parts the dataset is published in, one split of one collection each; their places."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from common.errors import PipelineError
from data.official.published import official_sizes
from data.tree import Collection, collections_named, splits_named

_LONGEST_NAME = 200  # bytes of a file's name: a temporary one beside it is some longer


@dataclass(frozen=True)
class Part:
    """One split of one collection."""

    collection: Collection
    split: str

    @property
    def label(self) -> str:
        """Return the name for people: "layout:xla:default/train"."""
        return f"{self.collection.name}/{self.split}"

    @property
    def stem(self) -> str:
        """Return the name of its published archive without ".tar": "npz_tile_xla_train"."""
        return f"npz_{self.collection.name.replace(':', '_')}_{self.split}"

    @property
    def folder(self) -> Path:
        return Path("npz", *self.collection.folder.split("/"), self.split)


PUBLISHED_GRAPHS: dict[Part, int] = {
    Part(collection, size.split): size.graphs
    for size in official_sizes()
    for collection in collections_named(size.collection)
}
_PARTS = {part.folder.as_posix(): part for part in PUBLISHED_GRAPHS}


def parts_named(collections: str | None, splits: str | None) -> list[Part]:
    """Return the parts that two comma-separated lists choose; None stands for all.

    Raises:
        UsageError: an unknown or empty name.
    """
    chosen = splits_named(splits)
    return [Part(one, split) for one in collections_named(collections) for split in chosen]


def place_of(name: str, source: object) -> tuple[Part, str] | None:
    """Tell where an archive's member belongs: its part and its file name; None if nowhere.

    Expected is npz/<kind>/<source>[/<search>]/<split>/<graph>.npz, with at most one leading folder
    ("npz_all", as Kaggle has it).

    Raises:
        PipelineError: the path is absolute, climbs up, or holds what no file name can.
    """
    parts = PurePosixPath(name).parts
    too_long = any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts)
    climbs = name.startswith("/") or ".." in parts or "\\" in name
    if climbs or too_long or not name.isprintable():
        raise PipelineError(
            f"{source}: member {ascii(name)[:200]} would leave the folder, or can name no file; "
            "nothing of it was unpacked: do not use this file"
        )
    path = PurePosixPath(*(parts if parts[:1] == ("npz",) else parts[1:]))
    part = _PARTS.get(str(path.parent))
    is_graph = path.suffix == ".npz" and not path.name.startswith(".")
    return (part, path.name) if part and is_graph else None
