"""Choose a blend of m members by g labelled graphs, with an honest figure.

The choice is nested cross-validation over graphs, families kept together. An outer fold judges a
choice that was made without it. On the other folds, each candidate is judged on each fold in turn,
with weights fitted to the rest. The best blend by that is fitted to all of them, and so is the best
member picked. So the outer values pay for fitting weights and for choosing alike.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004. The fit uses a sample of pairs, and a
short list of the configs of a tile kernel. The values that are reported are always exact.

Only the last decision uses the outer values themselves: the blend is taken if the 99 % interval of
its paired difference to the best member lies above 0, else the best member. The recipe's own blend
stays unless the winner beats it in the same way.

g graphs, n configs of all, m members, q weightings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.metrics import TILE_PICKS, family_interval, ranking_score
from common.progress import progress

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
# Maps weightings (q, m) to their mean metric (q,) over the chosen graphs.
Objective = Callable[[Indices, Floats], Floats]

# Pairs of configs of all graphs together: 150 for each of 400 graphs.
N_PAIRS = 60_000
# Configs of a kernel that a fit looks at.
SHORT_LIST = 64
# Pairs at a time: the products stay in the processor's cache.
BLOCK = 4_096
GREEDY, BEST_MEMBER, RECIPE = "greedy", "best member", "recipe"
DECIDING_CONFIDENCE = 0.99
EQUAL_VALUE = 1e-9
MAX_SELECTED = 50
# A smaller gain is rounding.
MIN_GAIN = 1e-6


@dataclass(frozen=True)
class ScoredGraphs:
    """The n configs of g labelled graphs, scored by m members; rows of a graph are consecutive.

    Attributes:
        kind: "layout" or "tile".
        families: Family of each graph, (g,).
        starts: First row of each graph, and n; (g + 1,).
        members: Names of the members, (m,).
        scores: (n, m) scores from 0 to 1 within each graph and member, lower = faster.
        runtime: (n,) measured runtimes, comparable within a graph.
    """

    kind: str
    families: tuple[str, ...]
    starts: Indices
    members: tuple[str, ...]
    scores: Floats
    runtime: Floats

    def __len__(self) -> int:
        return len(self.families)

    def rows(self) -> list[slice]:
        """Return the rows of each graph."""
        pairs = zip(self.starts[:-1], self.starts[1:], strict=True)
        return [slice(int(first), int(end)) for first, end in pairs]

    def values(self, scores: Floats, chosen: Indices | None = None) -> Floats:
        """Return the competition's metric of each graph, or of the chosen ones; (g,).

        Args:
            scores: (n,) scores of one ranker. They are rounded to float32, as score files are.
            chosen: Indices of graphs.
        """
        stored, rows = scores.astype(np.float32).astype(np.float64), self.rows()
        own = rows if chosen is None else [rows[index] for index in chosen]
        score = partial(ranking_score, self.kind, as_submitted=True)
        return np.array([score(stored[part], self.runtime[part]) for part in own])


def objective_of(graphs: ScoredGraphs, seed: int = 0) -> Objective:
    """Return the objective of a fit, by the kind of the graphs."""
    return tau_objective(graphs, seed=seed) if graphs.kind == "layout" else tile_objective(graphs)


def tau_objective(graphs: ScoredGraphs, *, n_pairs: int = N_PAIRS, seed: int = 0) -> Objective:
    """Judge by Kendall's tau on a fixed random sample of pairs, the same for every weighting.

    Of each graph about `n_pairs` / g of its pairs of different runtime are drawn with replacement,
    or all are taken where it has no more. So a mean estimates mean tau-b without bias (a tie counts
    0), with a standard error of at most 1/sqrt(n_pairs).
    """
    rng = np.random.default_rng(seed)
    per_graph = max(n_pairs // len(graphs), 1)
    differences, weights = [], []
    for rows in graphs.rows():
        slower, faster, weight = _pairs(graphs.runtime[rows], per_graph, rng)
        scores = graphs.scores[rows].astype(np.float32)
        differences.append((scores[slower] - scores[faster]).T)
        weights.append(np.full(len(slower), weight, np.float32))

    def objective(chosen: Indices, weightings: Floats) -> Floats:
        difference = np.concatenate([differences[index] for index in chosen], axis=1)
        weight = np.concatenate([weights[index] for index in chosen]) / np.float32(len(chosen))
        shares = weightings.astype(np.float32)  # (q, m) @ (m, pairs)
        total = np.zeros(len(shares))
        for first in range(0, len(weight), BLOCK):
            block = slice(first, first + BLOCK)
            total += np.sign(shares @ difference[:, block]) @ weight[block]
        return total

    return objective


def _pairs(
    runtime: Floats, at_most: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    """Draw pairs of different runtime; return the slower and faster configs, and a pair's weight.

    With the configs by runtime, each has as many partners as configs are strictly faster; the
    pairs are numbered through and drawn evenly.
    """
    order = np.argsort(runtime, kind="stable")
    ordered = runtime[order]
    n_faster = np.searchsorted(ordered, ordered, side="left")
    ends = np.cumsum(n_faster)
    n_pairs = int(ends[-1])
    drawn = np.arange(n_pairs) if n_pairs <= at_most else rng.integers(0, n_pairs, at_most)
    slower = np.searchsorted(ends, drawn, side="right")
    faster = drawn - (ends[slower] - n_faster[slower])
    # tau-b of a ranking without ties: (concordant - discordant) / sqrt(all pairs * distinct ones)
    scale = np.sqrt(n_pairs / (len(runtime) * (len(runtime) - 1) / 2))
    return order[slower], order[faster], float(scale / max(len(drawn), 1))


def tile_objective(graphs: ScoredGraphs) -> Objective:
    """Judge by the tile score of the best of five, picked from a short list of each kernel.

    On the list are the configs that rank highest with some member or with the members' mean, since
    hardly any other gets among the five of a blend; exact for kernels of no more configs.
    """
    shape = (len(graphs), SHORT_LIST)
    scores = np.full((*shape, len(graphs.members)), 2.0)  # no config: after all that are one
    values = np.full(shape, -np.inf)
    for index, rows in enumerate(graphs.rows()):
        own, runtime = graphs.scores[rows], graphs.runtime[rows]
        listed = _short_list(own)
        by_runtime = listed[np.argsort(runtime[listed], kind="stable")]
        row_order = np.argsort(np.argsort(by_runtime))[:, None] * 1e-9  # decides among equals
        scores[index, : len(listed)] = own[by_runtime] + row_order
        values[index, : len(listed)] = 2 - runtime[by_runtime] / runtime.min()

    def objective(chosen: Indices, weightings: Floats) -> Floats:
        own_scores, own_values = scores[chosen], values[chosen]
        result = np.empty(len(weightings))
        for place, weights in enumerate(weightings):
            blended = own_scores @ weights  # (g, short list)
            bound = np.partition(blended, TILE_PICKS - 1, axis=1)[:, TILE_PICKS - 1, None]
            best = np.argmax(blended <= bound, axis=1)  # the first: they are by runtime
            result[place] = np.take_along_axis(own_values, best[:, None], axis=1).mean()
        return result

    return objective


def _short_list(scores: Floats) -> Indices:
    """Return up to 64 rows of (c, m) scores, in order: the best of a member or of all."""
    if len(scores) <= SHORT_LIST:
        return np.arange(len(scores))
    with_mean = np.column_stack([scores, scores.mean(axis=1)])
    ranks = np.argsort(np.argsort(with_mean, axis=0, kind="stable"), axis=0)
    best = np.argsort(ranks.min(axis=1), kind="stable")[:SHORT_LIST]
    return np.sort(best)


class NestedCrossValidation:
    """The values of candidates on folds; each fit is made once.

    A fit without folds a and b serves the inner cross-validation of a and that of b: k folds need
    k(k - 1)/2 of these, k without one fold, and one of all.

    Args:
        graphs: Labelled graphs.
        fixed: (n,) scores of the blends that need no fit, simplest first.
        fold_of: (g,) fold of each graph, 0 to k - 1; at least three, families kept together.
        objective: Metric that a fit maximises; it may be an estimate.
    """

    def __init__(
        self,
        graphs: ScoredGraphs,
        fixed: Mapping[str, Floats],
        fold_of: Indices,
        objective: Objective,
    ) -> None:
        self.graphs, self.fold_of, self.objective = graphs, fold_of, objective
        self.all_folds = frozenset(range(int(fold_of.max()) + 1))
        self.fixed_values = {name: graphs.values(scores) for name, scores in fixed.items()}
        self.candidates = (*self.fixed_values, GREEDY)
        self.member_values = np.stack([graphs.values(own) for own in graphs.scores.T], axis=1)
        self._fits: dict[frozenset[int], Floats] = {}

    def outer_values(self) -> tuple[Floats, Floats]:
        """Return (g,) values of the best blend, and of the best member, found on other folds."""
        blend, member = np.empty(len(self.graphs)), np.empty(len(self.graphs))
        for fold in self.all_folds:
            others, held_out = self.all_folds - {fold}, self.fold_of == fold
            blend[held_out] = self._on_fold(self.best_blend(others), frozenset({fold}), fold)
            best = int(self._best_member(others).argmax())
            member[held_out] = self.member_values[held_out, best]
        return blend, member

    def best_blend(self, folds: frozenset[int]) -> str:
        """Return the best blend by cross-validation among `folds`; of equals the simplest."""
        values = {name: self.values(name, folds).mean() for name in self.candidates}
        best = max(values.values())
        return next(name for name, value in values.items() if value >= best - EQUAL_VALUE)

    def _best_member(self, folds: frozenset[int]) -> Floats:
        """Return (m,) weights of the member that is best on `folds`; of equals the first."""
        means = self.member_values[np.isin(self.fold_of, [*folds])].mean(axis=0)
        weights = np.zeros(len(means))
        weights[int(np.argmax(means >= means.max() - EQUAL_VALUE))] = 1
        return weights

    def values(self, name: str, folds: frozenset[int]) -> Floats:
        """Return a blend's values on each of `folds`, fitted to the others of them."""
        outside = self.all_folds - folds
        parts = [self._on_fold(name, outside | {fold}, fold) for fold in sorted(folds)]
        return np.concatenate(parts)

    def weights_of(self, name: str, without: frozenset[int]) -> Floats:
        """Return a blend's weights (m,), or the best member's, by all folds but `without`."""
        n_members, n_folds = len(self.graphs.members), len(self.all_folds)
        if name == BEST_MEMBER:
            return self._best_member(self.all_folds - without)
        if name != GREEDY:
            return np.ones(n_members)
        if without not in self._fits:
            used = np.flatnonzero(~np.isin(self.fold_of, [*without]))
            self._fits[without] = greedy_counts(partial(self.objective, used), n_members)
            progress("choose a blend", len(self._fits), n_folds * (n_folds + 1) // 2)
        return self._fits[without]

    def _on_fold(self, name: str, without: frozenset[int], fold: int) -> Floats:
        held_out = np.flatnonzero(self.fold_of == fold)
        if name != GREEDY:
            return self.fixed_values[name][held_out]
        weights = self.weights_of(name, without)
        return self.graphs.values(self.graphs.scores @ (weights / weights.sum()), held_out)


def greedy_counts(objective: Callable[[Floats], Floats], n_members: int) -> Floats:
    """Start from the best member; add, again and again, the one that leaves the mean highest.

    The result is the best of all bags on the way, of equals the smallest: a member that adds
    nothing by itself may do so with the next.

    Args:
        objective: Maps weightings (q, m), each summing to 1, to their value (q,); more is better.
        n_members: Number of members, m.

    Returns:
        (m,) how often each member was selected.
    """
    additions = np.eye(n_members)
    counts = best = np.zeros(n_members)
    highest = -np.inf
    for n_selected in range(1, MAX_SELECTED + 1):
        values = objective((counts + additions) / n_selected)
        # Of equal members the first that is selected already is added.
        equal = values >= values.max() - MIN_GAIN
        counts = counts + additions[np.argmax(equal * (1 + (counts > 0)))]
        if values.max() > highest + MIN_GAIN:
            best, highest = counts, values.max()
    return best


def choose_blend(
    nested: NestedCrossValidation, *, recipe: Floats | None = None, seed: int = 0
) -> dict[str, Any]:
    """Choose among blends with fixed weights, fitted blends and single members.

    Args:
        nested: Candidates and folds.
        recipe: (n,) scores of the blend that stays unless it is beaten; None for none.
        seed: Seed of the intervals.

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

    def interval_of(values: Floats) -> tuple[float, float]:
        confidence = DECIDING_CONFIDENCE
        return family_interval(values, graphs.families, seed=seed, confidence=confidence)

    def by_member(values: Floats) -> dict[str, float]:
        return dict(zip(graphs.members, map(float, values), strict=True))

    blend, member = nested.outer_values()
    interval = interval_of(blend - member)
    winner = nested.best_blend(nested.all_folds) if interval[0] > 0 else BEST_MEMBER
    values = blend if interval[0] > 0 else member
    against: dict[str, Any] = dict.fromkeys(
        ("recipe_value", "recipe_difference", "recipe_difference_ci99")
    )
    if recipe is not None:
        own = graphs.values(recipe)
        gain = interval_of(values - own)
        difference = float((values - own).mean())
        against = dict(zip(against, (float(own.mean()), difference, gain), strict=True))
        if gain[0] <= 0:
            winner, values = RECIPE, own
    weights = {}
    if winner != RECIPE:
        fitted = nested.weights_of(winner, frozenset())
        weights = by_member(fitted / fitted.sum())
    all_folds = nested.all_folds
    return {
        "chosen": winner,
        "weights": weights,
        "nested_value": float(values.mean()),
        "nested_ci95": family_interval(values, graphs.families, seed=seed),
        "candidates": {n: float(nested.values(n, all_folds).mean()) for n in nested.candidates},
        "member_values": by_member(nested.member_values.mean(axis=0)),
        "difference": float((blend - member).mean()),
        "difference_ci99": interval,
        **against,
        "n_graphs": len(graphs),
        "n_families": len(set(graphs.families)),
    }
