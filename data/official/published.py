"""The names of the public dataset's graphs, and the sizes of its parts, by "collection/split"."""

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from common.reproducibility import generator
from data.tree import collections_named, splits_named

NAMES, SIZES = (Path(__file__).with_name(name) for name in ("names.json.gz", "sizes.csv"))

# The public numbers of configs of the competition's test graphs. The sample submission lists 1000
# indices for every layout graph and five for every tile kernel. Competitors reported other numbers
# for two layout graphs and sixteen kernels (two of 2 configs, eight of 3, six of 4), but did not
# name the kernels.
LAYOUT_CONFIGS = 1000
# By submission ID: the layout graphs with another number of configs.
OTHER_LAYOUT_CONFIGS = {
    "layout:xla:random:937ee0eb0d5d6151b7b8252933b5c1c9": 1001,
    "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba": 1001,
}
# Least nodes and configs of a graph. One graph with 20 configs is left out.
MIN_SIZES = {"tile:xla": (2, 2), "layout:xla": (372, 1_000), "layout:nlp": (876, 11_000)}
# Largest size of tile kernels over the mean. Only means were published for them.
MAX_TILE_RATIO = 8
# Rank correlation of nodes and configs in the published train files: large programs have fewer.
SIZE_CORRELATION = {"tile:xla": 0.0, "layout:xla": -0.2, "layout:nlp": -0.9}
# The maximum for one kernel is not public. All kernels of the dataset have 12.9 million configs.
ALL_TILE_CONFIGS = 13_000_000


@dataclass(frozen=True)
class PartSize:
    """The size of one split of one collection. Nodes and configs are means over graphs."""

    collection: str
    split: str
    graphs: int
    nodes: int
    most_nodes: int  # nodes of the largest graph
    configs: int
    most_configs: int  # configs of the graph with most configs
    repeated: float  # share of configs that repeat another one of their graph, in [0, 1]

    @property
    def kind(self) -> str:
        return self.collection.split(":", 1)[0]


@cache
def official_names() -> Mapping[str, frozenset[str]]:
    """Return the names of the graphs of each "collection/split".

    layout:xla:random/train and layout:nlp:default/train have a few more names than graphs. Only
    their number of graphs was published, and their programs are those of the sibling collections.
    """
    names_of = json.loads(gzip.decompress(NAMES.read_bytes()))
    return {part: frozenset(names) for part, names in names_of.items()}


def official_sizes() -> list[PartSize]:
    rows = csv.DictReader(SIZES.read_text(encoding="utf-8").splitlines())
    return TypeAdapter(list[PartSize]).validate_python(list(rows))


def graph_sizes(part: PartSize) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return nodes (g,) and configs (g,) with the published means, maxima and correlation."""
    start = next(start for start in MIN_SIZES if part.collection.startswith(start))
    rng = generator(0, "sizes", part.collection, part.split)
    most = MAX_TILE_RATIO if part.kind == "tile" else 1
    nodes, configs = (
        spread(part.graphs, mean, most * largest, least)
        for mean, largest, least in zip(
            (part.nodes, part.configs),
            (part.most_nodes, part.most_configs),
            MIN_SIZES[start],
            strict=True,
        )
    )
    correlation = SIZE_CORRELATION[start]
    order, noise = rng.standard_normal((2, part.graphs))
    config_order = correlation * order + (1 - correlation**2) ** 0.5 * noise
    ranks = [values.argsort().argsort() for values in (order, config_order)]
    return nodes[ranks[0]], configs[ranks[1]]


def spread(n: int, mean: int, most: int, fewest: int) -> NDArray[np.int64]:
    """Return ascending sizes (n,), about even on a logarithmic scale, like the published ones.

    Their mean is exact. No size exceeds half of the sum, because the maximum of a valid split was
    not published and `most` is that of its collection.
    """
    if mean == most:
        return np.full(n, mean)
    most = min(most, mean * n // 2)
    steps, ratio, low, high = np.linspace(0, 1, n), most / fewest, 1e-3, 1e3
    # A higher power has smaller sizes. The bisection stops far below one size.
    for _ in range(60):
        power = (low * high) ** 0.5
        sizes = fewest * ratio ** (steps**power)
        low, high = (power, high) if sizes.mean() > mean else (low, power)
    integers = np.floor(sizes).astype(np.int64)
    integers[-1] = most
    n_missing = mean * n - int(integers.sum())
    integers[:n_missing] += 1
    return integers


# By part, for example "layout:xla:default/train".
PUBLISHED_GRAPHS = {f"{size.collection}/{size.split}": size.graphs for size in official_sizes()}


def parts_named(collections: str | None, splits: str | None) -> list[str]:
    """Return the parts of comma-separated lists; None for all collections or splits."""
    pairs = product(collections_named(collections), splits_named(splits))
    return [f"{collection.name}/{split}" for collection, split in pairs]
