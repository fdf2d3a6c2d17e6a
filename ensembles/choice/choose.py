"""Which blend of m members to take, decided by g labelled graphs, with an honest figure.

The choice is nested cross-validation over graphs, families kept together. An outer fold judges what
was made without it: on the other folds, each candidate is judged on each fold in turn with weights
fitted to the rest; the best blend by that is fitted to all of them, and so is the best single
member picked. The outer values thus pay for fitting weights and for choosing alike.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004. Fitting looks at a sample of pairs, and
for tile kernels at a short list of configs; what is reported is always `exact_values`.

Only the last decision rests on the outer values themselves: the blend is taken if the 99 % interval
of its paired difference to the best member lies above 0, else the best member. The recipe's own
blend stays unless the winner beats it in the same way.

g graphs, n configs of all, m members, q weightings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.metrics import TILE_PICKS, family_interval, kendall_tau, ranking_from_scores, tile_score
from common.progress import progress

Floats = NDArray[np.float64]
# Scores (c,) and runtime (c,) of one graph to its metric; more = better.
Metric = Callable[[Floats, Floats], float]
# Weightings (q, m) to their mean metric (q,) over the graphs that are chosen.
Objective = Callable[[Sequence[int], Floats], Floats]

N_PAIRS = 60_000  # of all graphs together: 150 for each of 400
SHORT_LIST = 64  # configs of a kernel
BLOCK = 4_096  # pairs at a time, so that the products stay in the processor's cache
GREEDY, BEST_MEMBER, RECIPE = "greedy", "best member", "recipe"
SURE = 0.99  # confidence of the intervals that decide
TIE = 1e-9
MAX_SELECTED = 50
LEAST_GAIN = 1e-6  # below this it is rounding


@dataclass(frozen=True)
class ScoredGraphs:
    """The n configs of g labelled graphs, scored by m members; a graph's rows stand together."""

    families: tuple[str, ...]  # (g,) the architecture of each graph; siblings share one
    starts: NDArray[np.int64]  # (g + 1,) first row of each graph, and n
    members: tuple[str, ...]  # (m,) names
    scores: Floats  # (n, m) of 0..1 within each graph and member, lower = faster
    runtime: Floats  # (n,) measured; comparable within a graph

    def __len__(self) -> int:
        return len(self.families)

    def rows(self) -> Iterator[slice]:
        for first, end in zip(self.starts[:-1], self.starts[1:], strict=True):
            yield slice(int(first), int(end))


def tau_as_submitted(scores: Floats, runtime: Floats) -> float:
    """Return Kendall's tau of the ranking that would be submitted; (c,) scores and runtimes."""
    return kendall_tau(np.argsort(ranking_from_scores(scores)), runtime)


def best_of_five(scores: Floats, runtime: Floats) -> float:
    """Return the tile score of the five picks that would be submitted; (c,) each."""
    return tile_score(ranking_from_scores(scores), runtime)


def exact_values(
    graphs: ScoredGraphs, scores: Floats, metric: Metric, chosen: Sequence[int] | None = None
) -> Floats:
    """Return the metric of each graph, or of the `chosen` ones; (g,).

    Args:
        scores: (n,) of one ranker, lower = faster. They are rounded to float32, as score files are.
    """
    stored = scores.astype(np.float32).astype(np.float64)
    rows = list(graphs.rows())
    own = rows if chosen is None else [rows[index] for index in chosen]
    return np.asarray([metric(stored[part], graphs.runtime[part]) for part in own])


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

    def objective(chosen: Sequence[int], weightings: Floats) -> Floats:
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

    def objective(chosen: Sequence[int], weightings: Floats) -> Floats:
        own_scores, own_values = scores[list(chosen)], values[list(chosen)]
        result = np.empty(len(weightings))
        for place, weights in enumerate(weightings):
            blended = own_scores @ weights  # (g, short list)
            bound = np.partition(blended, TILE_PICKS - 1, axis=1)[:, TILE_PICKS - 1, None]
            best = np.argmax(blended <= bound, axis=1)  # the first: they are by runtime
            result[place] = np.take_along_axis(own_values, best[:, None], axis=1).mean()
        return result

    return objective


def _short_list(scores: Floats) -> NDArray[np.int64]:
    """Return up to 64 rows of (c, m) scores, in order: the best of a member or of all."""
    if len(scores) <= SHORT_LIST:
        return np.arange(len(scores))
    with_mean = np.column_stack([scores, scores.mean(axis=1)])
    ranks = np.argsort(np.argsort(with_mean, axis=0, kind="stable"), axis=0)
    best = np.argsort(ranks.min(axis=1), kind="stable")[:SHORT_LIST]
    return np.sort(best)


class Nested:
    """The values of candidates on folds, each fit made once.

    A fit without folds a and b serves the inner cross-validation of a and that of b: k folds need
    k(k - 1)/2 of these, k without one fold, and one of all.

    Args:
        fixed: (n,) scores of the blends that need no fitting, simplest first.
        folds: indices of graphs, each in one fold; at least three, families kept together.
        metric: of one graph, for every figure that is reported or compared.
        objective: the same for the search for weights; may be an estimate.
    """

    def __init__(
        self,
        graphs: ScoredGraphs,
        fixed: Mapping[str, Floats],
        folds: Sequence[Sequence[int]],
        *,
        metric: Metric,
        objective: Objective,
    ) -> None:
        self.graphs, self.metric, self.objective = graphs, metric, objective
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
            self._fits[without] = greedy_counts(partial(self.objective, used), n_members)
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
