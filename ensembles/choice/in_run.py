"""The choice of a blend within a run: made on the valid split's scores, written, read and shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.machine import thread_limits
from common.metrics import family_folds
from common.progress import log
from data.families import family_of
from data.labels import Labels, read_labels_of
from data.tree import Collection, GraphFile
from ensembles.blend import (
    BlendSpec,
    apply_blend,
    blend_record,
    choice_file,
    joined,
    minmax,
    recipe_blend,
    write_choice,
)
from ensembles.choice.choose import RECIPE, ScoredGraphs, choose_blend, objective_of
from models.config.recipe import BlendConfig

FITTED_NOTE = (
    "The weights were fitted to the valid split, so the collection's value there is too good; "
    "held_out_value is of graphs that had no part in the fit, and is what to believe."
)
KEPT_NOTE = (
    "No other weights beat the recipe's own blend by more than noise, so it stays; held_out_value "
    "is its plain value on the valid split, to which nothing was fitted."
)
# The official xla splits have seven; how far few families widen an interval is in common.metrics.
MIN_GRAPHS, MIN_FAMILIES, MAX_FOLDS = 6, 3, 5
FITTED_SCALE = "minmax-mean"


def too_few(files: Sequence[GraphFile]) -> str | None:
    """Say what is missing to choose by labelled graphs, or None if they suffice."""
    families = {family_of(file) for file in files}
    if len(files) >= MIN_GRAPHS and len(families) >= MIN_FAMILIES:
        return None
    return (
        f"{len(files)} labelled graphs of {len(families)} families; a choice needs "
        f"{MIN_GRAPHS} of {MIN_FAMILIES}"
    )


def read_judged(files: Sequence[GraphFile]) -> dict[GraphFile, Labels]:
    """Read the labels of the graphs that can be judged.

    Graphs with withheld runtimes are left out, and layout graphs whose runtimes give no order.

    Raises:
        PipelineError: A file is damaged.
    """
    labels = {file: read_labels_of(file) for file in files}
    return {
        file: own
        for file, own in labels.items()
        if own.is_labelled and (file.collection.kind == "tile" or np.ptp(own.runtime_ns) > 0)
    }


def choose(
    judged: Mapping[GraphFile, Labels],
    members: Mapping[str, pl.DataFrame],
    *,
    recipe: BlendSpec,
    seed: int = 0,
) -> dict[str, Any]:
    """Choose a blend by labelled graphs, as `choose_blend`.

    Args:
        judged: Labels of graphs of one kind.
        members: Scores by member. Only the configs that they have scored count.
        recipe: Blend that stays unless fitted weights beat it.
        seed: Seed of folds, pairs and intervals.

    Returns:
        The record of `choose_blend`.

    Raises:
        PipelineError: The members have not scored the same configs.
    """
    names = [file.name for file in judged]
    own = {name: t.filter(pl.col("graph").is_in(names)) for name, t in members.items()}
    rows = next(iter(own.values()))
    tables = {table["graph"][0]: table for table in rows.partition_by("graph")}
    by_name = {file.name: (file, labels) for file, labels in judged.items()}
    files, runtimes = [], []
    for name, table in tables.items():
        file, labels = by_name[name]
        files.append(file)
        runtimes.append(labels.only(table["config"].to_numpy()).runtime)
    scaled = joined(rows, own, minmax, rows_of=f"member {next(iter(own))}")
    graphs = ScoredGraphs(
        kind=files[0].collection.kind,
        families=tuple(map(family_of, files)),
        starts=np.cumsum([0, *map(len, runtimes)]),
        members=tuple(own),
        scores=scaled.select(list(own)).to_numpy(),
        runtime=np.concatenate(runtimes).astype(np.float64),
    )
    kept = apply_blend(own, recipe)["score"].to_numpy().astype(float)
    fold_of = family_folds(graphs.families, min(MAX_FOLDS, len(set(graphs.families))), seed)
    with thread_limits(1, "blas"):  # the products are small: threads would wait
        return choose_blend(graphs, fold_of, objective_of(graphs, seed), kept, seed=seed)


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
    named = [replace(f, name=f.submission_id) for some in files.values() for f in some]
    judged = read_judged(named)
    reason = too_few([*judged])
    if reason:
        log.info(f"{names}: {reason}; the recipe's blend stays")
        record = {"chosen": RECIPE, "reason": reason, "held_out_value": None, **blend_record(own)}
    else:
        by_id = pl.col("graph")
        every = {
            name: pl.concat(
                tables[c][name].with_columns(graph=pl.lit(f"{c.name}:") + by_id) for c in files
            )
            for name in members
        }
        choice = choose(judged, every, recipe=own, seed=seed)
        spec, note = own, KEPT_NOTE
        message = "no weights beat the recipe's blend by more than noise; it stays"
        if choice["chosen"] != RECIPE:
            spec, note = BlendSpec(FITTED_SCALE, choice["weights"]), FITTED_NOTE
            message = (
                "blended by fitted weights; on valid graphs that had no part in the fit "
                f"{choice['held_out_value']:.4f}, which is what to believe"
            )
        record = {**choice, **blend_record(spec), "note": note}
        log.info(f"{names}: {message}")
    for path in paths:
        write_choice(path, {**record, "of": [collection.name for collection in files]})
