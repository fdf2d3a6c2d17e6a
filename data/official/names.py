"""Which graphs the public dataset holds, by collection and split.

`names.txt.gz` lists the names of 11 of the 15 parts: a heading "collection/split:" above the names
of each. Of the other four only the number of graphs is known; their programs are those of their
sibling collections.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data.fetch.parts import PUBLISHED_GRAPHS, Part
from data.tree import collection_named

NAMES = Path(__file__).parent / "names.txt.gz"
_SIBLINGS = {
    "layout:xla:random": ("layout:xla:default", "tile:xla"),
    "layout:nlp:default": ("layout:nlp:random",),
}


@dataclass(frozen=True)
class OfficialPart:
    """One split of one collection, as published.

    Attributes:
        n_graphs: how many there are.
        names: of the graphs; where they are more than `n_graphs`, the names that graphs may have.
    """

    n_graphs: int
    names: frozenset[str]

    @property
    def is_complete(self) -> bool:
        """Tell whether every name is that of a graph, so that missing ones can be named."""
        return len(self.names) == self.n_graphs


@cache
def official_parts() -> Mapping[str, OfficialPart]:
    """Return the published parts by "collection/split"."""
    listed = read_names(NAMES)
    parts = {}
    for part, n_graphs in PUBLISHED_GRAPHS.items():
        names = listed.get(part.label) or _names_of_siblings(part, listed)
        parts[part.label] = OfficialPart(n_graphs, names)
    return parts


def read_names(path: Path) -> dict[str, frozenset[str]]:
    """Read the lists: "collection/split" to names."""
    found: dict[str, set[str]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = line.strip()
            if text.endswith(":"):
                names = found.setdefault(text[:-1], set())
            else:
                names.add(text)
    return {part: frozenset(names) for part, names in found.items()}


def _names_of_siblings(part: Part, listed: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found: set[str] = set()
    for name in _SIBLINGS[part.collection.name]:
        names = listed[Part(collection_named(name), part.split).label]
        is_tile = collection_named(name).kind == "tile"
        found |= {name.rpartition("_")[0] for name in names} if is_tile else names
    return frozenset(found)
