"""Which graphs the public dataset holds, and how large its parts are, by "collection/split"."""

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from data.tree import Collection, collections_named, splits_named

NAMES, SIZES = (Path(__file__).with_name(name) for name in ("names.json.gz", "sizes.csv"))

# How many configs the competition's test graphs have, as far as it is public: the sample submission
# lists 1000 indices for every layout graph and five for every tile kernel; competitors noted other
# counts of two layout graphs and of sixteen kernels (two of 2 configs, eight of 3, six of 4), but
# not which kernels.
LAYOUT_CONFIGS = 1000
# By submission ID: the layout graphs with another number of configs.
OTHER_LAYOUT_CONFIGS = {
    "layout:xla:random:937ee0eb0d5d6151b7b8252933b5c1c9": 1001,
    "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba": 1001,
}
# How many the configs of a kernel can be at most was not noted. All kernels of the dataset together
# have 12.9 million, as published.
ALL_TILE_CONFIGS = 13_000_000


@dataclass(frozen=True)
class PartSize:
    """The size of one split of one collection; nodes, edges and configs are means over graphs."""

    collection: str
    split: str
    graphs: int
    nodes: int
    most_nodes: int  # of the largest graph
    edges: int
    configs: int
    most_configs: int  # of the largest graph
    repeated: float  # the share of configs that repeat another of their graph
    counted_in: str  # where the configs are from: "files", or "published averages"

    @property
    def kind(self) -> str:
        return self.collection.split(":", 1)[0]

    @property
    def distinct(self) -> float:
        """Return how many configs of a graph differ, on average."""
        return self.configs * (1 - self.repeated)


@cache
def official_names() -> Mapping[str, frozenset[str]]:
    """Return the names that graphs of each "collection/split" have.

    Of layout:xla:random/train and layout:nlp:default/train they are a few more than graphs: only
    their number was published, and their programs are those of the sibling collections.
    """
    listed = json.loads(gzip.decompress(NAMES.read_bytes()))
    return {part: frozenset(names) for part, names in listed.items()}


def official_sizes() -> list[PartSize]:
    rows = csv.DictReader(SIZES.read_text(encoding="utf-8").splitlines())
    return TypeAdapter(list[PartSize]).validate_python(list(rows))


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


def parts_named(collections: str | None, splits: str | None) -> list[Part]:
    """Return the parts that two comma-separated lists choose, None = all; may raise UsageError."""
    chosen = splits_named(splits)
    return [Part(one, split) for one in collections_named(collections) for split in chosen]
