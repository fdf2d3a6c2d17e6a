"""The choice of a blend within a run: made on the valid split's scores, written, read and shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from common.machine import thread_limits
from common.progress import log
from data.families import family_of, grouped_folds
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph, config_hashes
from data.tree import Collection, GraphFile
from ensembles.blend import (
    KEYS,
    SCALES,
    BlendSpec,
    apply_blend,
    blend_record,
    choice_file,
    joined,
    member_weights,
    minmax,
    recipe_blend,
    write_choice,
)
from ensembles.choice.choose import (
    RECIPE,
    Floats,
    Nested,
    ScoredGraphs,
    best_of_five,
    choose_blend,
    tau_as_submitted,
    tau_objective,
    tile_objective,
)
from models.config.recipe import BlendConfig
from models.predict import SCORE_SCHEMA

CHOSEN_NOTE = (
    "The blend was chosen on the valid split, so the collection's value there is too good; "
    "nested_value is of graphs that had no part in the choice, and is what to believe."
)
KEPT_NOTE = (
    "Nothing beat the recipe's own blend by more than noise, so it stays; nested_value is its "
    "plain value on the valid split, to which nothing was fitted."
)
# The official xla splits have seven; how far few families widen an interval is in common.metrics.
MIN_GRAPHS, MIN_FAMILIES, MAX_FOLDS = 6, 3, 5
FITTED_SCALE = "minmax-mean"  # of blends with fitted weights, and of single members
RUNTIME_SCHEMA = {
    **{name: dtype for name, dtype in SCORE_SCHEMA.items() if name != "score"},
    "runtime": pl.Float64,
}


class Labelled(NamedTuple):
    """Labelled graphs to choose by, all of one kind."""

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
    by: Labelled, members: Mapping[str, pl.DataFrame], *, recipe: BlendSpec, seed: int = 0
) -> dict[str, Any]:
    """Choose a blend by labelled graphs, as `choose_blend`.

    Args:
        by: Labelled graphs of one kind.
        members: Scores by member, of all configs of these graphs.
        recipe: Blend that stays unless another one beats it.
        seed: Seed of folds, pairs and intervals.

    Returns:
        The record of `choose_blend`.

    Raises:
        PipelineError: A member lacks configs, or has others.
    """
    by, is_layout = by.scored_by(members), by.files[0].collection.kind == "layout"
    judged = by.runtimes.select("graph").unique()
    own = {name: table.join(judged, on="graph", how="semi") for name, table in members.items()}
    sizes = by.runtimes.group_by("graph", maintain_order=True).len()["len"].to_numpy()
    scaled = joined(by.runtimes, own, minmax, rows_of="the labelled data")
    graphs = ScoredGraphs(
        families=tuple(family_of(file) for file in by.files),
        starts=np.cumsum([0, *sizes.astype(np.int64)]),
        members=tuple(own),
        scores=scaled.select(list(own)).to_numpy(),
        runtime=by.runtimes["runtime"].to_numpy(),
    )
    even = member_weights(list(own), {})
    blends = {method: apply_blend(own, BlendSpec(method, even)) for method in SCALES}
    n_folds = min(MAX_FOLDS, len(set(graphs.families)))
    place = {file.name: index for index, file in enumerate(by.files)}
    folds = [[place[f.name] for f in fold] for fold in grouped_folds(by.files, n_folds, seed)]
    with thread_limits(1, "blas"):  # the products are small: threads would wait
        fixed = {method: _on_rows(by, scores) for method, scores in blends.items()}
        metric = tau_as_submitted if is_layout else best_of_five
        objective = tau_objective(graphs, seed=seed) if is_layout else tile_objective(graphs)
        nested = Nested(graphs, fixed, folds, metric=metric, objective=objective)
        kept = _on_rows(by, apply_blend(own, recipe))
        return choose_blend(nested, recipe=kept, seed=seed)


def _on_rows(by: Labelled, blended: pl.DataFrame) -> Floats:
    """Return a blend's scores in the order of the runtimes; (n,)."""
    table = joined(by.runtimes, {"blend": blended}, lambda score: score, rows_of="labelled data")
    return table["blend"].to_numpy()


def choose_in_run(
    out: Path,
    blending: BlendConfig,
    files: Mapping[Collection, Sequence[GraphFile]],
    tables: Mapping[Collection, Mapping[str, pl.DataFrame]],
    *,
    seed: int,
) -> None:
    """Choose how to blend the members of one collection, or of several together, and write it.

    An official xla split has seven graphs: its two searches together have twice the labels. The
    recipe's own blend stays unless it is beaten beyond noise. Nothing if that was done before.

    Args:
        files: labelled graphs by collection, all of one kind.
        tables: what the same members scored of each collection.

    Raises:
        PipelineError: a damaged file.
    """
    paths = [choice_file(out, collection) for collection in files]
    members = list(next(iter(tables.values())))
    if all(path.exists() for path in paths) or len(members) < 2:
        return
    names = " and ".join(collection.name for collection in files)
    own = recipe_blend(blending, members)
    # The searches of a source have graphs of the same names: they are told apart by their IDs.
    by = labelled([replace(f, name=f.submission_id) for some in files.values() for f in some])
    reason = by.too_few()
    if reason:
        log.info(f"{names}: {reason}; the recipe's blend stays")
        record = {"chosen": RECIPE, "reason": reason, "nested_value": None, **blend_record(own)}
    else:
        by_id = pl.col("graph")
        every = {
            name: pl.concat(
                tables[c][name].with_columns(graph=pl.lit(f"{c.name}:") + by_id) for c in files
            )
            for name in members
        }
        choice = choose(by, every, recipe=own, seed=seed)
        spec, note = own, KEPT_NOTE
        told = "no blend beats the recipe's by more than noise; it stays"
        if choice["chosen"] != RECIPE:
            method = choice["chosen"] if choice["chosen"] in SCALES else FITTED_SCALE
            spec, note = BlendSpec(method, choice["weights"]), CHOSEN_NOTE
            told = (
                f"blended by {choice['chosen']}; on valid graphs that had no part in the choice "
                f"{choice['nested_value']:.4f}, which is what to believe"
            )
        record = {**choice, **blend_record(spec), "note": note}
        log.info(f"{names}: {told}")
    for path in paths:
        write_choice(path, {**record, "of": [collection.name for collection in files]})
