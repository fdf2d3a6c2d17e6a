"""Choose the blend of a run by the labels of its valid split, with an unbiased score.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004. Cross-validation scores each fold with
weights that are fitted to the other folds. All graphs of a family are in one fold. The fitted
weights replace the recipe's blend only if the 99 % interval of their gain is above 0.

c configs, m members.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.metrics import TILE_PICKS, family_folds, family_interval, ranking_score, tile_score
from common.progress import each, log
from data.families import family_of
from data.graph_store.stored_graph import read_tile
from data.labels import Labels, read_labels_of
from data.tree import Collection, GraphFile
from ensembles.blend import (
    BlendSpec,
    apply_blend,
    blend_record,
    choice_file,
    join_scaled,
    minmax,
    recipe_blend,
    write_choice,
)
from ensembles.picks import TILE_ERROR, TILE_ERRORS, top_k_to_measure
from models.config.recipe import BlendConfig

# An official xla split has seven graphs. Few families widen the interval (common.metrics).
MIN_GRAPHS, MIN_FAMILIES, MAX_FOLDS = 6, 3, 5
# A collection with this number of valid graphs chooses without the other search of its source. The
# official splits of xla have 7 graphs, and those of nlp have 20.
MIN_ALONE = 12
FITTED_SCALE = "minmax-mean"
GREEDY, RECIPE = "greedy", "recipe"
DECIDING_CONFIDENCE = 0.99
MAX_SELECTED = 25
# A smaller gain is rounding.
MIN_GAIN = 1e-6

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class ScoredGraph(NamedTuple):
    """A labelled graph of c configs with scores.

    Attributes:
        scores: Scores of the members, (c, m), from 0 to 1, lower = faster. The column of a member
            that does not rank the graph is nan.
        recipe_scores: Scores of the recipe's blend, (c,).
        runtime: Measured runtimes, (c,).
    """

    kind: str
    family: str
    scores: Floats
    recipe_scores: Floats
    runtime: Floats

    def value(self, scores: Floats) -> float:
        """Return the metric of scores, (c,), that are rounded to float32 as in score files."""
        return ranking_score(self.kind, scores.astype(np.float32), self.runtime, as_submitted=True)

    def blended(self, weights: Floats) -> Floats:
        """Blend the scores to (c,) with weights, (m,), as `apply_blend` does."""
        is_present = ~np.isnan(self.scores[0])
        shares = weights * is_present
        shares = shares if shares.any() else is_present
        return np.asarray(np.nan_to_num(self.scores) @ (shares / shares.sum()))


def too_few(files: Sequence[GraphFile]) -> str | None:
    """Return the reason why graphs are too few for a choice, or None if they suffice."""
    n_families = len({family_of(file) for file in files})
    if len(files) >= MIN_GRAPHS and n_families >= MIN_FAMILIES:
        return None
    requirement = f"a choice needs {MIN_GRAPHS} of {MIN_FAMILIES}"
    return f"{len(files)} labelled graphs of {n_families} families; {requirement}"


def read_judged(files: Sequence[GraphFile]) -> dict[GraphFile, Labels]:
    """Read the labels of graphs, except withheld ones and equal runtimes of layouts."""
    labels = {file: read_labels_of(file) for file in files}
    return {
        file: label
        for file, label in labels.items()
        if label.is_labelled and (file.collection.kind == "tile" or np.ptp(label.runtime_ns) > 0)
    }


def greedy_weights(value: Callable[[Floats], float], n_members: int) -> Floats:
    """Fit weights by greedy selection with replacement.

    Each step adds the member that gives the highest value. The selection does not stop at a step
    without gain, because two members may help only together.

    Args:
        value: Maps weights, (m,) with sum 1, to their value; more is better.
        n_members: Number of members, m.

    Returns:
        Weights, (m,) with sum 1, of the best step, or the first of several equal steps.
    """
    counts = best = np.zeros(n_members)
    highest = -np.inf
    for n_selected in range(1, MAX_SELECTED + 1):
        bags = counts + np.eye(n_members)
        values = np.array([value(bag / n_selected) for bag in bags])
        # Among equal members, prefer the first that is selected already.
        equal = values >= values.max() - MIN_GAIN
        counts = bags[np.argmax(equal * (1 + (counts > 0)))]
        if values.max() > highest + MIN_GAIN:
            best, highest = counts / n_selected, values.max()
    return best


def cross_validate(
    values_of: Callable[[Places, Places], Floats],
    default: Floats,
    families: Sequence[str],
    *,
    seed: int,
) -> tuple[Floats, Floats, tuple[float, float]]:
    """Compare a fitted choice with the default on families outside the fit.

    Args:
        values_of: Fits a choice to the graphs at some places, and returns its value at others.
        default: Value of each graph by the default, (g,).
        families: Family of each graph.

    Returns:
        Values of the better of the two, (g,), the gain of the fitted choice, (g,), and the 99 %
        interval of the mean gain. The fitted choice is better if the whole interval is above 0.
    """
    n_folds = min(MAX_FOLDS, len(set(families)))
    fold_of, fitted_values = family_folds(families, n_folds, seed), np.empty(len(families))
    for fold in each("choose a blend", range(n_folds)):
        inside, outside = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        fitted_values[outside] = values_of(inside, outside)
    gain = fitted_values - default
    interval = family_interval(gain, families, seed=seed, confidence=DECIDING_CONFIDENCE)
    return fitted_values if interval[0] > 0 else default, gain, interval


def choose_blend(
    graphs: Sequence[ScoredGraph], members: Sequence[str], *, seed: int = 0
) -> dict[str, Any]:
    """Choose between the recipe's blend and weights that are fitted to the graphs.

    Returns:
        `chosen` is GREEDY or RECIPE. `weights` have sum 1, and are empty for RECIPE. `gain` and
        the values `held_out_*` are measured on graphs outside the fit, the others on all graphs.
    """
    all_places, families = np.arange(len(graphs)), [graph.family for graph in graphs]

    def values(weights: Floats, places: Places) -> Floats:
        return np.array([graphs[g].value(graphs[g].blended(weights)) for g in places])

    def fit(places: Places) -> Floats:
        return greedy_weights(lambda w: float(values(w, places).mean()), len(members))

    recipe = np.array([graph.value(graph.recipe_scores) for graph in graphs])
    best, gain, gain_ci99 = cross_validate(
        lambda inside, outside: values(fit(inside), outside), recipe, families, seed=seed
    )
    is_better = gain_ci99[0] > 0
    weights = dict(zip(members, fit(all_places).tolist(), strict=True)) if is_better else {}
    member_values = [float(values(row, all_places).mean()) for row in np.eye(len(members))]
    return {
        "chosen": GREEDY if is_better else RECIPE,
        "weights": weights,
        "held_out_value": float(best.mean()),
        "held_out_ci95": family_interval(best, families, seed=seed),
        "recipe_value": float(recipe.mean()),
        "gain": float(gain.mean()),
        "gain_ci99": gain_ci99,
        "member_values": dict(zip(members, member_values, strict=True)),
        "n_graphs": len(graphs),
        "n_families": len(set(families)),
    }


def choose_tile_error(
    labels: Mapping[GraphFile, Labels], blend_scores: pl.DataFrame, *, seed: int = 0
) -> dict[str, Any]:
    """Choose the error of the scores for the five configs of tile kernels, see `ensembles.picks`.

    Returns:
        `tile_error`, which is the default unless another one is better beyond noise, and `values`,
        the tile score of each error. The other values are measured on kernels outside the choice.
    """
    by_name, rows, families = {file.name: file for file in labels}, [], []
    for part in each("choose the tile error", blend_scores.sort("config").partition_by("graph")):
        file = by_name.get(part["graph"][0])
        if file is None:
            continue
        kernel, scores = read_tile(file), part["score"].to_numpy()
        runtime = labels[file].runtime.astype(np.float64)
        fives = (top_k_to_measure(scores, kernel, TILE_PICKS, error) for error in TILE_ERRORS)
        rows.append([tile_score(five, runtime) for five in fives])
        families.append(family_of(file))
    values = np.array(rows)  # (g, errors)
    best, _, gain_ci99 = cross_validate(
        lambda inside, outside: values[outside, values[inside].mean(axis=0).argmax()],
        values[:, TILE_ERRORS.index(TILE_ERROR)],
        families,
        seed=seed,
    )
    means = values.mean(axis=0)
    return {
        "tile_error": TILE_ERRORS[int(means.argmax())] if gain_ci99[0] > 0 else TILE_ERROR,
        "values": dict(zip(map(str, TILE_ERRORS), means.tolist(), strict=True)),
        "held_out_value": float(best.mean()),
        "gain_ci99": gain_ci99,
    }


def scored_graphs(
    labels: Mapping[GraphFile, Labels], members: Mapping[str, pl.DataFrame], recipe: BlendSpec
) -> list[ScoredGraph]:
    """Join labels and scores, in the order of the member that ranks most graphs."""
    by_name = {file.name: file for file in labels}
    tables = {name: t.filter(pl.col("graph").is_in([*by_name])) for name, t in members.items()}
    widest = max(tables, key=lambda name: tables[name].height)
    scaled_scores = join_scaled(tables[widest], tables, minmax, rows_of=f"member {widest}")
    table = scaled_scores.with_columns(recipe_score=apply_blend(tables, recipe)["score"])
    graphs = []
    for part in table.partition_by("graph", maintain_order=True):
        file = by_name[part["graph"][0]]
        runtime = labels[file].only(part["config"].to_numpy()).runtime.astype(np.float64)
        scores = part.select([*tables]).to_numpy(), part["recipe_score"].cast(pl.Float64).to_numpy()
        graphs.append(ScoredGraph(file.collection.kind, family_of(file), *scores, runtime))
    return graphs


def choosing_together(
    members: Mapping[Collection, Sequence[str]], n_graphs: Mapping[Collection, int]
) -> list[list[Collection]]:
    """Group small collections of a source with the same members. They choose one blend."""
    groups: dict[tuple[str, ...], list[Collection]] = {}
    for collection, names in members.items():
        is_alone = n_graphs[collection] >= MIN_ALONE
        place = [collection.name] if is_alone else collection.name.split(":")[:2]
        groups.setdefault((*place, *names), []).append(collection)
    return [*groups.values()]


def choose_in_run(
    out: Path,
    blending: BlendConfig,
    files: Mapping[Collection, Sequence[GraphFile]],
    tables: Mapping[Collection, Mapping[str, pl.DataFrame]],
    *,
    seed: int,
) -> None:
    """Choose one blend for one or more collections, and write it. An existing choice stays."""
    paths = [choice_file(out, collection) for collection in files]
    members = list(next(iter(tables.values())))
    if all(path.exists() for path in paths) or len(members) < 2:
        return
    # Two searches have graphs with equal names, so graphs are joined by submission ID.
    labels = read_judged(
        [replace(f, name=f.submission_id) for group in files.values() for f in group]
    )
    recipe = recipe_blend(blending, members)
    if reason := too_few([*labels]):
        facts = {"chosen": RECIPE, "reason": reason, "held_out_value": None}
        record = facts | blend_record(recipe)
        message = f"{reason}; uses the recipe's blend"
    else:
        by_id = {
            name: pl.concat(
                tables[c][name].with_columns(graph=pl.lit(f"{c.name}:") + pl.col("graph"))
                for c in files
            )
            for name in members
        }
        record, message = _choose(labels, by_id, recipe, seed)
    names = [collection.name for collection in files]
    log.info(f"{' and '.join(names)}: {message}")
    for path in paths:
        write_choice(path, {**record, "of": names})


def _choose(
    labels: Mapping[GraphFile, Labels],
    members: Mapping[str, pl.DataFrame],
    recipe: BlendSpec,
    seed: int,
) -> tuple[dict[str, Any], str]:
    """Return the record of a choice, and a message about it."""
    choice = choose_blend(scored_graphs(labels, members, recipe), [*members], seed=seed)
    spec = recipe
    message = "no weights beat the recipe's blend by more than noise; uses the recipe's blend"
    if choice["chosen"] != RECIPE:
        spec = BlendSpec(FITTED_SCALE, choice["weights"])
        held_out = "their value on valid graphs outside the fit is"
        message = f"uses fitted weights; {held_out} {choice['held_out_value']:.4f}"
    if next(iter(labels)).collection.kind == "tile":
        error = choose_tile_error(labels, apply_blend(members, spec), seed=seed)
        spec = spec._replace(tile_error=error["tile_error"])
        choice["of_tile_error"] = error
    return choice | blend_record(spec), message
