"""How good weightings of members are: the mean metric over graphs, exactly or fast.

g graphs, n configs of all, m members, q weightings. Fitting weights looks at a sample of pairs,
and for tile kernels at a short list of configs. What is reported is always `exact_values`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.metrics import TILE_PICKS, kendall_tau, ranking_from_scores, tile_score

Floats = NDArray[np.float64]
# Scores (c,) and runtime (c,) of one graph to its metric; more = better.
Metric = Callable[[Floats, Floats], float]
# Weightings (q, m) to their mean metric (q,) over the graphs that are chosen.
Judge = Callable[[Sequence[int], Floats], Floats]

N_PAIRS = 60_000  # of all graphs together: 150 for each of 400
SHORT_LIST = 64  # configs of a kernel
BLOCK = 4_096  # pairs at a time, so that the products stay in the processor's cache


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


def tau_judge(graphs: ScoredGraphs, *, n_pairs: int = N_PAIRS, seed: int = 0) -> Judge:
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

    def judge(chosen: Sequence[int], weightings: Floats) -> Floats:
        difference = np.concatenate([differences[index] for index in chosen], axis=1)
        weight = np.concatenate([weights[index] for index in chosen]) / np.float32(len(chosen))
        shares = weightings.astype(np.float32)  # (q, m) @ (m, pairs)
        total = np.zeros(len(shares))
        for first in range(0, len(weight), BLOCK):
            block = slice(first, first + BLOCK)
            total += np.sign(shares @ difference[:, block]) @ weight[block]
        return total

    return judge


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


def tile_judge(graphs: ScoredGraphs) -> Judge:
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

    def judge(chosen: Sequence[int], weightings: Floats) -> Floats:
        own_scores, own_values = scores[list(chosen)], values[list(chosen)]
        result = np.empty(len(weightings))
        for place, weights in enumerate(weightings):
            blended = own_scores @ weights  # (g, short list)
            bound = np.partition(blended, TILE_PICKS - 1, axis=1)[:, TILE_PICKS - 1, None]
            best = np.argmax(blended <= bound, axis=1)  # the first: they are by runtime
            result[place] = np.take_along_axis(own_values, best[:, None], axis=1).mean()
        return result

    return judge


def _short_list(scores: Floats) -> NDArray[np.int64]:
    """Return up to 64 rows of (c, m) scores, in order: the best of a member or of all."""
    if len(scores) <= SHORT_LIST:
        return np.arange(len(scores))
    with_mean = np.column_stack([scores, scores.mean(axis=1)])
    ranks = np.argsort(np.argsort(with_mean, axis=0, kind="stable"), axis=0)
    best = np.argsort(ranks.min(axis=1), kind="stable")[:SHORT_LIST]
    return np.sort(best)
