"""Which blend of m members to take, decided by g labelled graphs, with an honest figure.

The choice is nested cross-validation over graphs, families kept together. An outer fold judges what
was made without it: on the other folds, each candidate is judged on each fold in turn with weights
fitted to the rest (the inner cross-validation); the best blend by that is fitted to all of them,
and so is the best single member picked. The outer folds' values thus pay for fitting weights, for
choosing among blends and for choosing among members alike.

Only the last decision rests on the outer values themselves: the blend is taken if the 99 % interval
of its paired difference to the best member lies above 0, else the best member; by 95 % noise is
taken for a gain too often. Where the recipe has a blend of its own, that stays unless the winner
beats it in the same way: it was settled without these labels and has nothing fitted, so it is
whatever replaces it that needs evidence. This one bit makes the value of a narrow winner a little
too good, by less than its interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.bootstrap import family_interval
from ensembles.choice.nested import FITS, Nested
from ensembles.choice.objectives import Judge, Metric, exact_values
from ensembles.choice.scored_graphs import ScoredGraphs
from models.training.jobs import Progress

Floats = NDArray[np.float64]
Interval = tuple[float, float]

BEST_BLEND = "best blend"
BEST_MEMBER = "best member"
RECIPE = "recipe"
SURE = 0.99  # confidence of the intervals that decide


@dataclass(frozen=True)
class BlendChoice:
    """The blend that is taken, and what it rests on. Values are means over graphs, more is better.

    Attributes:
        chosen: a candidate's name, BEST_MEMBER or RECIPE.
        weights: by member, summing to 1; empty for RECIPE.
        nested_value: of the outer folds, for the choice; of RECIPE, where nothing is fitted or
            chosen, its plain value.
        candidates: each blend's value on folds its weights were not fitted to. The highest of them
            is too good, by being the highest.
        member_values: of each member alone.
        best_blend_value: nested, of the blend that was best without the graph at hand; it may be
            another one on each fold.
        best_member_value: likewise of the best member.
        difference: best_blend_value less best_member_value, paired over graphs.
        recipe_value: plain; None without a recipe's blend.
        recipe_difference: the winner of the two less the recipe's blend, paired, nested.
    """

    chosen: str
    weights: dict[str, float]
    nested_value: float
    nested_ci95: Interval
    candidates: dict[str, float]
    member_values: dict[str, float]
    best_blend_value: float
    best_member_value: float
    difference: float
    difference_ci99: Interval
    recipe_value: float | None
    recipe_difference: float | None
    recipe_difference_ci99: Interval | None
    n_graphs: int
    n_families: int


def choose_blend(
    graphs: ScoredGraphs,
    fixed: Mapping[str, Floats],
    folds: Sequence[Sequence[int]],
    *,
    metric: Metric,
    judge: Judge,
    recipe: Floats | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> BlendChoice:
    """Choose among blends with fixed weights, fitted ones and single members.

    Args:
        graphs: members' scores and runtimes.
        fixed: (n,) scores of the blends that need no fitting, simplest first.
        folds: indices of graphs, each in one fold; at least three, families kept together.
        metric: of one graph, for every figure that is reported or compared.
        judge: the same for the search for weights; may be an estimate.
        recipe: (n,) scores of the blend that stays unless it is beaten; None for none.
        seed: of the intervals' draws.
    """
    nested = Nested(graphs, fixed, folds, metric=metric, judge=judge, progress=progress)
    blend, member = nested.outer_values()
    interval = family_interval(blend - member, graphs.families, seed=seed, confidence=SURE)
    winner = nested.best_blend(nested.every) if interval[0] > 0 else BEST_MEMBER
    values = blend if interval[0] > 0 else member
    own = None if recipe is None else exact_values(graphs, recipe, metric)
    own_interval = None
    gain = None if own is None else values - own
    if own is not None and gain is not None:
        own_interval = family_interval(gain, graphs.families, seed=seed, confidence=SURE)
        if own_interval[0] <= 0:
            winner, values = RECIPE, own
    return BlendChoice(
        chosen=winner,
        weights=_weights(nested, winner),
        nested_value=float(values.mean()),
        nested_ci95=family_interval(values, graphs.families, seed=seed),
        candidates={name: float(nested.judged(name).mean()) for name in [*fixed, *FITS]},
        member_values=_by_member(graphs, nested.member_values.mean(axis=0)),
        best_blend_value=float(blend.mean()),
        best_member_value=float(member.mean()),
        difference=float((blend - member).mean()),
        difference_ci99=interval,
        recipe_value=None if own is None else float(own.mean()),
        recipe_difference=None if gain is None else float(gain.mean()),
        recipe_difference_ci99=own_interval,
        n_graphs=len(graphs),
        n_families=len(set(graphs.families)),
    )


def _weights(nested: Nested, chosen: str) -> dict[str, float]:
    """Return a choice's weights by member, fitted to all graphs and summing to 1."""
    if chosen == RECIPE:
        return {}
    if chosen == BEST_MEMBER:
        return _by_member(nested.graphs, nested.best_member(nested.every))
    weights = nested.weights_of(chosen, frozenset())
    return _by_member(nested.graphs, weights / weights.sum())


def _by_member(graphs: ScoredGraphs, values: Floats) -> dict[str, float]:
    return dict(zip(graphs.members, map(float, values), strict=True))
