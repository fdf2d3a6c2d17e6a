"""From labelled graphs and members' score tables to the chosen blend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from threadpoolctl import threadpool_limits

from data.tree import Collection, GraphFile
from ensembles.blend import METHODS, Mixing, blend, member_weights, mix
from ensembles.choice.choose import BlendChoice, choose_blend
from ensembles.choice.objectives import (
    Judge,
    Metric,
    best_of_five,
    tau_as_submitted,
    tau_judge,
    tile_judge,
)
from ensembles.choice.scored_graphs import (
    ScoredGraphs,
    on_rows,
    runtime_table,
    scored_graphs,
    scores_of,
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


@dataclass(frozen=True)
class Choosing:
    """Labelled graphs to choose by.

    Attributes:
        collection: of all of them.
        files: the graphs.
        runtimes: of their configs, columns as in scored_graphs.RUNTIME_SCHEMA.
    """

    collection: Collection
    files: Sequence[GraphFile]
    runtimes: pl.DataFrame

    def too_few(self) -> str | None:
        """Say what is missing to choose by these graphs, or None if they suffice."""
        families = {family_of(file) for file in self.files}
        if len(self.files) >= MIN_GRAPHS and len(families) >= MIN_FAMILIES:
            return None
        return (
            f"{len(self.files)} labelled graphs of {len(families)} families; a choice needs "
            f"{MIN_GRAPHS} of {MIN_FAMILIES}"
        )


def labelled(collection: Collection, files: Sequence[GraphFile]) -> Choosing:
    """Read the runtimes of those graphs that can be judged.

    Raises:
        PipelineError: a damaged file.
    """
    runtimes = runtime_table(files)
    known = set(runtimes["graph"].unique())
    return Choosing(collection, [file for file in files if file.name in known], runtimes)


def choose(
    by: Choosing,
    members: Mapping[str, pl.DataFrame],
    *,
    recipe: Mixing | None = None,
    seed: int = 0,
) -> BlendChoice:
    """Choose a blend for members that have scored the labelled graphs.

    Args:
        by: enough graphs, see `Choosing.too_few`.
        members: scores as of models.predict, of these graphs and perhaps more, by member name.
        recipe: the blend that stays unless it is beaten, judged with its spread of picks; all
            others are judged, and used, without.
        seed: of folds, sampled pairs and intervals.

    Raises:
        PipelineError: a member has not scored just these configs.
    """
    own = {name: scores_of(table, by.runtimes) for name, table in members.items()}
    graphs = scored_graphs(by.runtimes, own, by.files)
    even = member_weights(list(own), {})
    fixed = {
        method: on_rows(by.runtimes, blend(own, method=method, weights=even)) for method in METHODS
    }
    mixed = None
    if recipe is not None:
        mixed = on_rows(by.runtimes, mix(own, recipe, by.files))
    names = by.runtimes["graph"].unique(maintain_order=True)
    place = {name: index for index, name in enumerate(names)}
    n_folds = min(MAX_FOLDS, len(set(graphs.families)))
    folds = [[place[f.name] for f in fold] for fold in grouped_folds(by.files, n_folds, seed)]
    kind = by.collection.kind
    judge = JUDGES[kind](graphs, seed)
    with threadpool_limits(1, user_api="blas"):  # the products are small: threads would wait
        return choose_blend(
            graphs,
            fixed,
            folds,
            metric=METRICS[kind],
            judge=judge,
            recipe=mixed,
            seed=seed,
        )


def mixing_of(choice: BlendChoice) -> Mixing:
    """Return how to blend by a choice other than the recipe's own blend."""
    return Mixing(choice.chosen if choice.chosen in METHODS else FITTED_SCALE, choice.weights)


def choose_and_blend(
    by: Choosing,
    members: Mapping[str, pl.DataFrame],
    targets: Mapping[str, pl.DataFrame],
    *,
    seed: int = 0,
) -> tuple[BlendChoice, pl.DataFrame]:
    """Choose by labelled graphs, and blend the same members' scores of others.

    Args:
        by: as for `choose`.
        members: scores of the labelled graphs, by member name.
        targets: scores to blend, by the same names.
    """
    choice = choose(by, members, seed=seed)
    mixing = mixing_of(choice)
    return choice, blend(targets, method=mixing.method, weights=mixing.weights)
