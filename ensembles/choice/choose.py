"""Which blend of m members to take, decided by g labelled graphs, with an honest figure.

The choice is nested cross-validation over graphs, families kept together. An outer fold judges what
was made without it: on the other folds, each candidate is judged on each fold in turn with weights
fitted to the rest; the best blend by that is fitted to all of them, and so is the best single
member picked. The outer values thus pay for fitting weights and for choosing alike.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004.

Only the last decision rests on the outer values themselves: the blend is taken if the 99 % interval
of its paired difference to the best member lies above 0, else the best member. The recipe's own
blend stays unless the winner beats it in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from common.metrics import family_interval
from common.progress import progress
from ensembles.choice.objectives import (
    Floats,
    Judge,
    Metric,
    ScoredGraphs,
    exact_values,
)

GREEDY, BEST_MEMBER, RECIPE = "greedy", "best member", "recipe"
SURE = 0.99  # confidence of the intervals that decide
TIE = 1e-9
MAX_SELECTED = 50
LEAST_GAIN = 1e-6  # below this it is rounding


class Nested:
    """The values of candidates on folds, each fit made once.

    A fit without folds a and b serves the inner cross-validation of a and that of b: k folds need
    k(k - 1)/2 of these, k without one fold, and one of all.

    Args:
        fixed: (n,) scores of the blends that need no fitting, simplest first.
        folds: indices of graphs, each in one fold; at least three, families kept together.
        metric: of one graph, for every figure that is reported or compared.
        judge: the same for the search for weights; may be an estimate.
    """

    def __init__(
        self,
        graphs: ScoredGraphs,
        fixed: Mapping[str, Floats],
        folds: Sequence[Sequence[int]],
        *,
        metric: Metric,
        judge: Judge,
    ) -> None:
        self.graphs, self.metric, self.judge = graphs, metric, judge
        self.folds = [list(fold) for fold in folds]
        self.every = frozenset(range(len(self.folds)))
        self.fixed_values = {
            name: exact_values(graphs, scores, metric) for name, scores in fixed.items()
        }
        self.candidates = (*self.fixed_values, GREEDY)
        own = [exact_values(graphs, column, metric) for column in graphs.scores.T]
        self.member_values = np.stack(own, axis=1)  # (g, m)
        self._fits: dict[frozenset[int], Floats] = {}

    def outer_values(self) -> tuple[Floats, Floats]:
        """Return (g,) values of the best blend, and of the best member, found on other folds."""
        blend, member = np.empty(len(self.graphs)), np.empty(len(self.graphs))
        for fold, held in enumerate(self.folds):
            others = self.every - {fold}
            blend[held] = self._on_fold(self.best_blend(others), frozenset({fold}), fold)
            best = int(self.best_member(others).argmax())
            member[held] = self.member_values[held, best]
        return blend, member

    def best_blend(self, folds: frozenset[int]) -> str:
        """Return the best blend by cross-validation among `folds`; of equals the simplest."""
        values = {name: self.judged(name, folds).mean() for name in self.candidates}
        best = max(values.values())
        return next(name for name, value in values.items() if value >= best - TIE)

    def best_member(self, folds: frozenset[int]) -> Floats:
        """Return (m,) weights of the member that is best on `folds` alone; the first of equals."""
        rows = [index for fold in folds for index in self.folds[fold]]
        means = self.member_values[rows].mean(axis=0)
        weights = np.zeros(len(means))
        weights[int(np.argmax(means >= means.max() - TIE))] = 1
        return weights

    def judged(self, name: str, folds: frozenset[int]) -> Floats:
        """Return a blend's values on each of `folds`, fitted to the others of them."""
        outside = self.every - folds
        parts = [self._on_fold(name, outside | {fold}, fold) for fold in sorted(folds)]
        return np.concatenate(parts)

    def weights_of(self, name: str, without: frozenset[int]) -> Floats:
        """Return a blend's weights (m,), or the best member's, by all folds but `without`."""
        n_members, n_folds = len(self.graphs.members), len(self.folds)
        if name == BEST_MEMBER:
            return self.best_member(self.every - without)
        if name != GREEDY:
            return np.ones(n_members)
        if without not in self._fits:
            used = [i for fold, own in enumerate(self.folds) if fold not in without for i in own]
            self._fits[without] = greedy_counts(partial(self.judge, used), n_members)
            progress("choose a blend", len(self._fits), n_folds * (n_folds + 1) // 2)
        return self._fits[without]

    def _on_fold(self, name: str, without: frozenset[int], fold: int) -> Floats:
        held = self.folds[fold]
        if name != GREEDY:
            return self.fixed_values[name][held]
        weights = self.weights_of(name, without)
        scores = self.graphs.scores @ (weights / weights.sum())
        return exact_values(self.graphs, scores, self.metric, held)


def greedy_counts(objective: Callable[[Floats], Floats], n_members: int) -> Floats:
    """Start from the best member; add, again and again, the one that leaves the mean highest.

    Taken is the best of all bags on the way, of equals the smallest: what adds nothing by itself
    may do so with the next. Returns (m,) how often each was selected.

    Args:
        objective: weightings (q, m), each summing to 1, to their value (q,); more is better.
    """
    additions = np.eye(n_members)
    counts = best = np.zeros(n_members)
    highest = -np.inf
    for n_selected in range(1, MAX_SELECTED + 1):
        values = objective((counts + additions) / n_selected)
        equal = values >= values.max() - LEAST_GAIN  # of these the first that is selected already
        counts = counts + additions[np.argmax(equal * (1 + (counts > 0)))]
        if values.max() > highest + LEAST_GAIN:
            best, highest = counts, values.max()
    return best


def choose_blend(nested: Nested, *, recipe: Floats | None = None, seed: int = 0) -> dict[str, Any]:
    """Choose among blends with fixed weights, fitted ones and single members.

    Args:
        recipe: (n,) scores of the blend that stays unless it is beaten; None for none.

    Returns:
        `chosen`: a candidate's name, BEST_MEMBER or RECIPE; `weights` by member, summing to 1,
        empty for RECIPE. The rest are means over graphs, more is better: `nested_value` and
        `nested_ci95` of the outer folds, for the choice (of RECIPE, where nothing is fitted or
        chosen, its plain value); `candidates`, each blend on folds its weights were not fitted to;
        `member_values`; `difference` of the best blend to the best member, both nested, paired over
        graphs, with its 99 % interval `difference_ci99`; likewise `recipe_difference` of the winner
        of the two to the recipe's blend, and `recipe_value`, plain; `n_graphs` and `n_families`.
    """
    graphs = nested.graphs
    blend, member = nested.outer_values()
    interval = family_interval(blend - member, graphs.families, seed=seed, confidence=SURE)
    winner = nested.best_blend(nested.every) if interval[0] > 0 else BEST_MEMBER
    values = blend if interval[0] > 0 else member
    against: dict[str, Any] = dict.fromkeys(
        ("recipe_value", "recipe_difference", "recipe_difference_ci99")
    )
    if recipe is not None:
        own = exact_values(graphs, recipe, nested.metric)
        gain = values - own
        surely = family_interval(gain, graphs.families, seed=seed, confidence=SURE)
        against = dict(zip(against, (float(own.mean()), float(gain.mean()), surely), strict=True))
        if surely[0] <= 0:
            winner, values = RECIPE, own
    weights = {}
    if winner != RECIPE:
        fitted = nested.weights_of(winner, frozenset())
        weights = _by_member(graphs, fitted / fitted.sum())
    return {
        "chosen": winner,
        "weights": weights,
        "nested_value": float(values.mean()),
        "nested_ci95": family_interval(values, graphs.families, seed=seed),
        "candidates": {n: float(nested.judged(n, nested.every).mean()) for n in nested.candidates},
        "member_values": _by_member(graphs, nested.member_values.mean(axis=0)),
        "difference": float((blend - member).mean()),
        "difference_ci99": interval,
        **against,
        "n_graphs": len(graphs),
        "n_families": len(set(graphs.families)),
    }


def _by_member(graphs: ScoredGraphs, values: Floats) -> dict[str, float]:
    return dict(zip(graphs.members, map(float, values), strict=True))
