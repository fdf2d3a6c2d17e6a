"""Members' scores of labelled graphs as plain arrays: what the choice of a blend rests on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.distinct import config_hashes
from data.graphs.graph import TileGraph
from data.read import read_graph
from data.tree import GraphFile
from ensembles.blend import KEYS, joined, minmax, same_configs
from models.training.folds import family_of

RUNTIME_SCHEMA = {
    "graph": pl.String,
    "config": pl.UInt32,
    "config_hash": pl.UInt64,
    "runtime": pl.Float64,
}


@dataclass(frozen=True)
class ScoredGraphs:
    """The n configs of g labelled graphs, scored by m members; a graph's rows stand together.

    Attributes:
        families: (g,) the architecture of each graph; siblings share one.
        starts: (g + 1,) int64 first row of each graph, and n.
        members: (m,) names.
        scores: (n, m) float64 of 0..1 within each graph and member, lower = faster.
        runtime: (n,) float64 measured; comparable within a graph.
    """

    families: tuple[str, ...]
    starts: NDArray[np.int64]
    members: tuple[str, ...]
    scores: NDArray[np.float64]
    runtime: NDArray[np.float64]

    def __len__(self) -> int:
        """Return g."""
        return len(self.families)

    def rows(self) -> Iterator[slice]:
        """Yield the rows of each graph."""
        for first, end in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield slice(int(first), int(end))

    def part(self, chosen: Sequence[int]) -> "ScoredGraphs":
        """Return some of the graphs, in the order of `chosen`."""
        rows = list(self.rows())
        own = np.concatenate([np.arange(rows[i].start, rows[i].stop) for i in chosen])
        sizes = [0, *(rows[i].stop - rows[i].start for i in chosen)]
        return ScoredGraphs(
            tuple(self.families[i] for i in chosen),
            np.cumsum(sizes),
            self.members,
            self.scores[own],
            self.runtime[own],
        )


def runtime_table(files: Sequence[GraphFile]) -> pl.DataFrame:
    """Read the runtimes of the graphs that can be judged, one graph in memory at a time.

    Graphs whose runtimes are withheld are left out, and layout graphs whose runtimes give no order.

    Returns:
        Columns as in RUNTIME_SCHEMA; a tile kernel's runtime is over its normalizer.

    Raises:
        PipelineError: a damaged file.
    """
    tables = [pl.DataFrame(schema=RUNTIME_SCHEMA)]
    for file in files:
        graph = read_graph(file)
        tile = isinstance(graph, TileGraph)
        runtime = graph.normalized_runtime if isinstance(graph, TileGraph) else graph.runtime_ns
        if not graph.is_labelled or (not tile and runtime.min() == runtime.max()):
            continue
        columns = {
            "graph": [file.name] * graph.n_configs,
            "config": np.arange(graph.n_configs, dtype=np.uint32),
            "config_hash": config_hashes(graph),
            "runtime": runtime.astype(np.float64),
        }
        tables.append(pl.DataFrame(columns, schema=RUNTIME_SCHEMA))
    return pl.concat(tables)


def scored_graphs(
    runtimes: pl.DataFrame, members: Mapping[str, pl.DataFrame], files: Sequence[GraphFile]
) -> ScoredGraphs:
    """Bring each member's scores to 0..1 within each graph and put them beside the runtimes.

    Args:
        runtimes: as of `runtime_table`; its rows are the result's.
        members: scores of these graphs and no others, by member name; see `scores_of`.
        files: the graphs of `runtimes`, for their families; others do no harm.

    Raises:
        PipelineError: a member has not scored just these configs.
    """
    table = joined(runtimes.drop("runtime"), members, minmax, rows_of="the labelled data")
    sizes = runtimes.group_by("graph", maintain_order=True).len()
    family = {file.name: family_of(file) for file in files}
    return ScoredGraphs(
        families=tuple(family[name] for name in sizes["graph"]),
        starts=np.concatenate([[0], sizes["len"].to_numpy().astype(np.int64).cumsum()]),
        members=tuple(members),
        scores=table.select(list(members)).to_numpy(),
        runtime=runtimes["runtime"].to_numpy(),
    )


def scores_of(scores: pl.DataFrame, runtimes: pl.DataFrame) -> pl.DataFrame:
    """Return the scores of those graphs whose runtimes are known."""
    return scores.join(runtimes.select("graph").unique(), on="graph", how="semi")


def on_rows(runtimes: pl.DataFrame, blended: pl.DataFrame) -> NDArray[np.float64]:
    """Return a blend's scores in the order of `runtimes`; (n,).

    Raises:
        PipelineError: a config is not scored.
    """
    if same_configs(blended, runtimes):
        return blended["score"].to_numpy().astype(np.float64)
    per_config = blended.unique(KEYS).select(*KEYS, "score")
    scores = runtimes.join(per_config, on=KEYS, how="left", maintain_order="left")["score"]
    if scores.null_count():
        raise PipelineError("blend: a config of the labelled data has no score")
    return scores.to_numpy().astype(np.float64)
