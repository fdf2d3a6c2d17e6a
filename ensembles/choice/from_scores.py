"""From labelled graphs and members' score tables to the chosen blend."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from data.graphs.distinct import config_hashes
from data.graphs.graph import TileGraph
from data.read import read_graph
from data.tree import GraphFile
from ensembles.blend import KEYS, SCALES, Mixing, blend, joined, member_weights, minmax, mix
from ensembles.choice.choose import BlendChoice, Nested, choose_blend
from ensembles.choice.objectives import (
    Floats,
    Judge,
    Metric,
    ScoredGraphs,
    best_of_five,
    tau_as_submitted,
    tau_judge,
    tile_judge,
)
from models.training.folds import family_of, grouped_folds

# The official xla splits have seven; how far few families widen an interval is in common.bootstrap.
MIN_GRAPHS, MIN_FAMILIES, MAX_FOLDS = 6, 3, 5
FITTED_SCALE = "minmax-mean"  # of blends with fitted weights, and of single members
METRICS: dict[str, Metric] = {"layout": tau_as_submitted, "tile": best_of_five}
JUDGES: dict[str, Callable[[ScoredGraphs, int], Judge]] = {
    "layout": lambda graphs, seed: tau_judge(graphs, seed=seed),
    "tile": lambda graphs, seed: tile_judge(graphs),
}
RUNTIME_SCHEMA = {
    "graph": pl.String,
    "config": pl.UInt32,
    "config_hash": pl.UInt64,
    "runtime": pl.Float64,
}


class Labelled(NamedTuple):
    """Labelled graphs of one collection to choose by."""

    files: Sequence[GraphFile]
    runtimes: pl.DataFrame  # as in RUNTIME_SCHEMA; a tile kernel's are over its normalizer

    def too_few(self) -> str | None:
        """Say what is missing to choose by these graphs, or None if they suffice."""
        families = {family_of(file) for file in self.files}
        if len(self.files) >= MIN_GRAPHS and len(families) >= MIN_FAMILIES:
            return None
        return (
            f"{len(self.files)} labelled graphs of {len(families)} families; a choice needs "
            f"{MIN_GRAPHS} of {MIN_FAMILIES}"
        )

    def scored_by(self, members: Mapping[str, pl.DataFrame]) -> "Labelled":
        """Leave the configs that some member has scored."""
        rows = [*KEYS, "config"]
        scored = pl.concat(table.select(rows) for table in members.values()).unique()
        if self.runtimes.join(scored, on="graph", how="anti").height:
            return self  # nobody has scored that graph: whoever joins them will say so
        taken = self.runtimes.join(scored, on=rows, how="semi", maintain_order="left")
        return self._replace(runtimes=taken)


def labelled(files: Sequence[GraphFile]) -> Labelled:
    """Read the runtimes of those graphs that can be judged, one graph in memory at a time.

    Graphs whose runtimes are withheld are left out, and layout graphs whose runtimes give no order.

    Raises:
        PipelineError: a damaged file.
    """
    known, tables = [], [pl.DataFrame(schema=RUNTIME_SCHEMA)]
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
        known.append(file)
        tables.append(pl.DataFrame(columns, schema=RUNTIME_SCHEMA))
    return Labelled(known, pl.concat(tables))


def choose(
    by: Labelled,
    members: Mapping[str, pl.DataFrame],
    *,
    recipe: Mixing,
    seed: int = 0,
) -> BlendChoice:
    """Choose a blend for members that have scored the labelled graphs.

    Args:
        recipe: the blend that stays unless it is beaten, of tiles judged with its spread of picks;
            all others are judged, and used, without. Of layouts all are judged without: Kendall's
            tau sees no gain in picks.

    Raises:
        PipelineError: a member has not scored just these configs.
    """
    by = by.scored_by(members)
    judged = by.runtimes.select("graph").unique()
    own = {name: table.join(judged, on="graph", how="semi") for name, table in members.items()}
    graphs = _scored_graphs(by, own)
    even = member_weights(list(own), {})
    blends = {method: blend(own, method=method, weights=even) for method in SCALES}
    n_folds = min(MAX_FOLDS, len(set(graphs.families)))
    place = {file.name: index for index, file in enumerate(by.files)}
    folds = [[place[f.name] for f in fold] for fold in grouped_folds(by.files, n_folds, seed)]
    kind = by.files[0].collection.kind
    with threadpool_limits(1, user_api="blas"):  # the products are small: threads would wait
        fixed = {method: _on_rows(by, scores) for method, scores in blends.items()}
        judge = JUDGES[kind](graphs, seed)
        nested = Nested(graphs, fixed, folds, metric=METRICS[kind], judge=judge)
        judged_as = recipe._replace(diversity=None) if kind == "layout" else recipe
        kept = _on_rows(by, mix(own, judged_as, by.files))
        return choose_blend(nested, recipe=kept, seed=seed)


def mixing_of(choice: BlendChoice) -> Mixing:
    """Return how to blend by a choice other than the recipe's own blend."""
    return Mixing(choice.chosen if choice.chosen in SCALES else FITTED_SCALE, choice.weights)


def _scored_graphs(by: Labelled, members: Mapping[str, pl.DataFrame]) -> ScoredGraphs:
    table = joined(by.runtimes, members, minmax, rows_of="the labelled data")
    sizes = by.runtimes.group_by("graph", maintain_order=True).len()["len"]
    return ScoredGraphs(
        families=tuple(family_of(file) for file in by.files),
        starts=np.concatenate([[0], sizes.to_numpy().astype(np.int64).cumsum()]),
        members=tuple(members),
        scores=table.select(list(members)).to_numpy(),
        runtime=by.runtimes["runtime"].to_numpy(),
    )


def _on_rows(by: Labelled, blended: pl.DataFrame) -> Floats:
    """Return a blend's scores in the order of the runtimes; (n,)."""
    table = joined(
        by.runtimes, {"blend": blended}, lambda score: score, rows_of="the labelled data"
    )
    return table["blend"].to_numpy()
