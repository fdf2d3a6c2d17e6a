"""Write sizes.csv from statistics of the dataset's files; needed again only if the dataset grows.

python -m data.official.write_sizes FILE, where FILE is a table with the columns collection, split,
graph, n_nodes, n_edges, n_configs and n_duplicate_configs, the last two empty where unknown. What
it lacks is taken from the averages that the dataset's authors publish (Phothilimthana et al.,
NeurIPS 2023, CC BY 4.0), nodes from the sibling collection, which has the same programs.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import typer

from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.sizes import SIZES, PartSize, write_sizes

# Averages per graph: nodes, configs, the most configs, the share of configs that repeat another.
PUBLISHED = {
    "layout:xla:default": (14_105, 10_147, 71_574, 0.39),
    "layout:xla:random": (14_105, 11_648, 99_783, 0.19),
    "layout:nlp:default": (5_659, 56_534, 90_985, 0.14),
    "layout:nlp:random": (5_659, 66_089, 100_001, 0.0006),
    "tile:xla": (40, 1_842, 1_842, 0.0),
}
SIBLINGS = {
    "layout:xla:random": "layout:xla:default",
    "layout:nlp:default": "layout:nlp:random",
    "tile:xla": "tile:xla",
}
LARGEST = {"layout:xla": 43_615, "layout:nlp": 21_919, "tile:xla": 40}
EDGES_PER_NODE = 1.66  # of the real files whose edges are known
TEST_CONFIGS = 1_000  # of every layout graph but two, which have 1,001


def part_sizes(rows: Sequence[dict[str, str]]) -> list[PartSize]:
    """Return the sizes of the published parts, from what is known of files and of collections."""
    return [
        _part_size(part.collection.name, part.split, count, rows)
        for part, count in PUBLISHED_GRAPHS.items()
    ]


def _part_size(collection: str, split: str, count: int, rows: Sequence[dict[str, str]]) -> PartSize:
    mean_nodes, mean_configs, most_configs, repeated = PUBLISHED[collection]
    own = [row for row in rows if (row["collection"], row["split"]) == (collection, split)]
    sibling = SIBLINGS.get(collection, collection)
    like = own or [row for row in rows if (row["collection"], row["split"]) == (sibling, split)]
    nodes = [int(row["n_nodes"]) for row in like if row["n_nodes"]]
    edges = [int(row["n_edges"]) for row in like if row["n_edges"]]
    counted = [row for row in own if row["n_configs"]]
    configs = [int(row["n_configs"]) for row in counted]
    if split == "test" and collection.startswith("layout"):
        mean_configs = most_configs = TEST_CONFIGS
    if configs:
        mean_configs, most_configs = round(sum(configs) / len(configs)), max(configs)
        repeated = sum(int(row["n_duplicate_configs"]) for row in counted) / sum(configs)
    n_nodes = round(sum(nodes) / len(nodes)) if nodes else mean_nodes
    largest = LARGEST[
        collection.rsplit(":", 1)[0] if collection.startswith("layout") else collection
    ]
    return PartSize(
        collection=collection,
        split=split,
        graphs=count,
        nodes=n_nodes,
        most_nodes=max(nodes, default=largest),
        edges=round(sum(edges) / len(edges)) if edges else round(EDGES_PER_NODE * n_nodes),
        configs=mean_configs,
        most_configs=most_configs,
        repeated=round(repeated, 4),
        counted_in="files" if configs else "published averages",
    )


def write_from(table: Path, out: Path = SIZES) -> None:
    """Write the sizes that follow from `table` to `out`; the same table gives the same bytes."""
    with table.open(newline="", encoding="utf-8") as stream:
        write_sizes(part_sizes(list(csv.DictReader(stream))), out)


if __name__ == "__main__":
    typer.run(write_from)
