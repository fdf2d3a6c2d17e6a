"""Choose the blend of a run by the labels of its valid split, with an honest figure.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004. Each fold of graphs, families kept
together, is judged with weights fitted to the other folds. These values are compared with the
recipe's own blend, graph by graph. The recipe's blend stays unless the 99 % interval of the
difference lies above 0.

c configs, m members.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.metrics import family_folds, family_interval, ranking_score
from common.progress import each, log
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
GREEDY, RECIPE = "greedy", "recipe"
DECIDING_CONFIDENCE = 0.99
MAX_SELECTED = 25
# A smaller gain is rounding.
MIN_GAIN = 1e-6

Floats = NDArray[np.float64]


class ScoredGraph(NamedTuple):
    """A labelled graph that all members have scored.

    Attributes:
        kind: "layout" or "tile".
        family: Family of the graph.
        scores: Scores of the members, (c, m), from 0 to 1, lower = faster.
        kept: Scores of the recipe's blend, (c,).
        runtime: Measured runtimes, (c,).
    """

    kind: str
    family: str
    scores: Floats
    kept: Floats
    runtime: Floats

    def value(self, scores: Floats) -> float:
        """Return the competition's metric of scores (c,), rounded to float32 as in score files."""
        return ranking_score(self.kind, scores.astype(np.float32), self.runtime, as_submitted=True)


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


def greedy_weights(value: Callable[[Floats], float], n_members: int) -> Floats:
    """Start from the best member; add, again and again, the one that leaves the value highest.

    The result is the best of all bags on the way, of equals the smallest: a member that adds
    nothing by itself may do so with the next.

    Args:
        value: Maps weights (m,) that sum to 1 to their value; more is better.
        n_members: Number of members, m.

    Returns:
        Weights, (m,), that sum to 1.
    """
    counts = best = np.zeros(n_members)
    highest = -np.inf
    for n_selected in range(1, MAX_SELECTED + 1):
        bags = counts + np.eye(n_members)
        values = np.array([value(bag / n_selected) for bag in bags])
        # Of equal members the first that is selected already is added.
        equal = values >= values.max() - MIN_GAIN
        counts = bags[np.argmax(equal * (1 + (counts > 0)))]
        if values.max() > highest + MIN_GAIN:
            best, highest = counts / n_selected, values.max()
    return best


def choose_blend(
    graphs: Sequence[ScoredGraph], members: Sequence[str], *, seed: int = 0
) -> dict[str, Any]:
    """Choose between the recipe's blend and weights that are fitted to the graphs.

    Args:
        graphs: Labelled graphs.
        members: Names of the m members.
        seed: Seed of folds and intervals.

    Returns:
        `chosen`: GREEDY or RECIPE. `weights` by member, summing to 1, empty for RECIPE. The rest
        are means over graphs, more is better: `held_out_value` and `held_out_ci95` of what is
        chosen, on graphs that had no part in the fit; `recipe_value`; `gain` of the fitted weights
        over the recipe's blend, on such graphs as well, with its 99 % interval `gain_ci99`;
        `member_values`; `n_graphs` and `n_families`.
    """
    families = [graph.family for graph in graphs]
    n_folds = min(MAX_FOLDS, len(set(families)))
    fold_of = family_folds(families, n_folds, seed)

    def values(weights: Floats, chosen: Sequence[ScoredGraph]) -> list[float]:
        return [graph.value(graph.scores @ weights) for graph in chosen]

    def fitted(chosen: Sequence[ScoredGraph]) -> Floats:
        return greedy_weights(lambda own: float(np.mean(values(own, chosen))), len(members))

    greedy = np.empty(len(graphs))
    for fold in each("choose a blend", range(n_folds)):
        weights = fitted([g for g, own in zip(graphs, fold_of, strict=True) if own != fold])
        held_out = [g for g, own in zip(graphs, fold_of, strict=True) if own == fold]
        greedy[fold_of == fold] = values(weights, held_out)
    kept = np.array([graph.value(graph.kept) for graph in graphs])
    gain_ci99 = family_interval(greedy - kept, families, seed=seed, confidence=DECIDING_CONFIDENCE)
    is_better = gain_ci99[0] > 0
    best = greedy if is_better else kept
    alone = [float(np.mean(values(weights, graphs))) for weights in np.eye(len(members))]
    return {
        "chosen": GREEDY if is_better else RECIPE,
        "weights": dict(zip(members, fitted(graphs).tolist(), strict=True)) if is_better else {},
        "held_out_value": float(best.mean()),
        "held_out_ci95": family_interval(best, families, seed=seed),
        "recipe_value": float(kept.mean()),
        "gain": float((greedy - kept).mean()),
        "gain_ci99": gain_ci99,
        "member_values": dict(zip(members, alone, strict=True)),
        "n_graphs": len(graphs),
        "n_families": len(set(families)),
    }


def scored_graphs(
    judged: Mapping[GraphFile, Labels], members: Mapping[str, pl.DataFrame], recipe: BlendSpec
) -> list[ScoredGraph]:
    """Join labels and scores of graphs.

    Args:
        judged: Labels of graphs of one kind.
        members: Scores by member. Only the configs that they have scored count.
        recipe: Blend of the recipe.

    Returns:
        The graphs, in the order of the first member's scores.

    Raises:
        PipelineError: The members have not scored the same configs.
    """
    by_name = {file.name: file for file in judged}
    own = {name: t.filter(pl.col("graph").is_in([*by_name])) for name, t in members.items()}
    first = next(iter(own))
    scaled = joined(own[first], own, minmax, rows_of=f"member {first}")
    table = scaled.with_columns(kept=apply_blend(own, recipe)["score"])
    graphs = []
    for part in table.partition_by("graph", maintain_order=True):
        file = by_name[part["graph"][0]]
        runtime = judged[file].only(part["config"].to_numpy()).runtime.astype(np.float64)
        kept = part["kept"].to_numpy().astype(np.float64)
        scores = part.select([*own]).to_numpy()
        graphs.append(ScoredGraph(file.collection.kind, family_of(file), scores, kept, runtime))
    return graphs


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
        out: Folder of the run.
        blending: Table [blend] of the recipe.
        files: Labelled graphs by collection, all of one kind.
        tables: Scores by collection and member. All collections have the same members.
        seed: Seed of folds and intervals.

    Raises:
        PipelineError: A file is damaged.
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
        choice = choose_blend(scored_graphs(judged, every, own), members, seed=seed)
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
