"""How large the public dataset's parts are: sizes.csv, a line per split of a collection."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from common.atomic import write_text

SIZES = Path(__file__).parent / "sizes.csv"


@dataclass(frozen=True)
class PartSize:
    """The size of one split of one collection.

    Attributes:
        collection, split: whose size it is.
        graphs: how many there are.
        nodes, edges, configs: of a graph, on average.
        most_nodes, most_configs: of the largest graph.
        repeated: the share of configs that repeat another of their graph.
        counted_in: where the configs are from: "files", or "published averages".
    """

    collection: str
    split: str
    graphs: int
    nodes: int
    most_nodes: int
    edges: int
    configs: int
    most_configs: int
    repeated: float
    counted_in: str

    @property
    def distinct(self) -> float:
        """Return how many configs of a graph differ, on average."""
        return self.configs * (1 - self.repeated)


def official_sizes() -> list[PartSize]:
    """Return the sizes of the published parts."""
    with SIZES.open(newline="", encoding="utf-8") as stream:
        return [_read(row) for row in csv.DictReader(stream)]


def _read(row: dict[str, str]) -> PartSize:
    return PartSize(
        collection=row["collection"],
        split=row["split"],
        graphs=int(row["graphs"]),
        nodes=int(row["nodes"]),
        most_nodes=int(row["most_nodes"]),
        edges=int(row["edges"]),
        configs=int(row["configs"]),
        most_configs=int(row["most_configs"]),
        repeated=float(row["repeated"]),
        counted_in=row["counted_in"],
    )


def write_sizes(parts: Sequence[PartSize], out: Path) -> None:
    """Write the table to `out`."""
    stream = io.StringIO()
    names = [field.name for field in fields(PartSize)]
    table = csv.DictWriter(stream, names, lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(part) for part in parts)
    write_text(out, stream.getvalue())
