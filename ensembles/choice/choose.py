"""Choose a blend of m members by g labelled graphs, with an honest figure.

Weights are fitted by greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes,
"Ensemble Selection from Libraries of Models", ICML 2004. The fit uses a sample of pairs, and a
short list of the configs of a tile kernel. The values that are reported are always exact.

Each fold of graphs, families kept together, is judged with weights fitted to the other folds. These
values are compared with the recipe's own blend, graph by graph. The recipe's blend stays unless the
99 % interval of the difference lies above 0.

g graphs, n configs of all, m members, q weightings.
"""

from collections.abc import Callable
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
GREEDY, RECIPE = "greedy", "recipe"
DECIDING_CONFIDENCE = 0.99
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
    graphs: ScoredGraphs,
    fold_of: Indices,
    objective: Objective,
    recipe: Floats,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Choose between the recipe's blend and weights that are fitted to the graphs.

    Args:
        graphs: Labelled graphs.
        fold_of: Fold of each graph, (g,); 0 to k - 1, families kept together.
        objective: Metric that a fit maximises; it may be an estimate.
        recipe: Scores of the recipe's blend, (n,).
        seed: Seed of the intervals.

    Returns:
        `chosen`: GREEDY or RECIPE. `weights` by member, summing to 1, empty for RECIPE. The rest
        are means over graphs, more is better: `held_out_value` and `held_out_ci95` of what is
        chosen, on graphs that had no part in the fit; `recipe_value`; `gain` of the fitted weights
        over the recipe's blend, on such graphs as well, with its 99 % interval `gain_ci99`;
        `member_values`; `n_graphs` and `n_families`.
    """
    n_members = len(graphs.members)

    def fitted(chosen: Indices) -> Floats:
        counts = greedy_counts(partial(objective, chosen), n_members)
        weights: Floats = counts / counts.sum()
        return weights

    greedy, n_folds = np.empty(len(graphs)), int(fold_of.max()) + 1
    for fold in range(n_folds):
        progress("choose a blend", fold, n_folds)
        held_out, others = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        greedy[held_out] = graphs.values(graphs.scores @ fitted(others), held_out)
    kept = graphs.values(recipe)
    gain_ci99 = family_interval(
        greedy - kept, graphs.families, seed=seed, confidence=DECIDING_CONFIDENCE
    )
    is_better = gain_ci99[0] > 0
    values = greedy if is_better else kept
    weights = fitted(np.arange(len(graphs))).tolist() if is_better else ()
    return {
        "chosen": GREEDY if is_better else RECIPE,
        "weights": dict(zip(graphs.members, weights, strict=False)),
        "held_out_value": float(values.mean()),
        "held_out_ci95": family_interval(values, graphs.families, seed=seed),
        "recipe_value": float(kept.mean()),
        "gain": float((greedy - kept).mean()),
        "gain_ci99": gain_ci99,
        "member_values": {
            name: float(graphs.values(own).mean())
            for name, own in zip(graphs.members, graphs.scores.T, strict=True)
        },
        "n_graphs": len(graphs),
        "n_families": len(set(graphs.families)),
    }
