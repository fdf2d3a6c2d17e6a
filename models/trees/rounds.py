"""How many rounds of boosting to take, by folds of the train graphs that keep families apart."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from common.metrics import kendall_tau, tile_score
from models.training.folds import family_of, grouped_folds
from models.trees.rows import GraphRows

# Advances by a round and returns the scores (r,) of the held-out rows, higher = faster.
Advance = Callable[[], NDArray[np.float64]]
# (learned, held-out) row numbers -> what advances
Begin = Callable[[NDArray[np.int64], NDArray[np.int64]], Advance]


def choose_rounds(
    graphs: Sequence[GraphRows],
    begin: Begin,
    *,
    at_most: int,
    patience: int,
    n_folds: int,
    seed: int,
) -> int:
    """Return the round at which the mean of the folds is best, over those that all of them reached.

    Folds are trained one after the other, each until its own held-out graphs have not been ranked
    better for `patience` rounds.

    Args:
        begin: starts a training on some rows.
    """
    fold_of = row_folds(graphs, n_folds, seed)
    curves = []
    for fold in range(fold_of.max() + 1):
        held_out = np.flatnonzero(fold_of == fold)
        advance = begin(np.flatnonzero(fold_of != fold), held_out)
        curve: list[float] = []
        while len(curve) < at_most and len(curve) - int(np.argmax(curve or [0])) <= patience:
            curve.append(ranked(graphs, held_out, advance()))
        curves.append(curve)
        del advance  # a fold's rows go before the next one's come
    shortest = min(map(len, curves))
    return int(np.argmax(np.mean([curve[:shortest] for curve in curves], axis=0))) + 1


def row_folds(graphs: Sequence[GraphRows], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row; whole families, or with one family configs of each graph."""
    files = [graph.file for graph in graphs]
    n_families = len({family_of(file) for file in files})
    sizes = [len(graph.rows) for graph in graphs]
    if n_families < 2:
        return np.concatenate([np.arange(size) % n_folds for size in sizes])
    folds = grouped_folds(files, min(n_folds, n_families), seed)
    fold_of = {file: number for number, fold in enumerate(folds) for file in fold}
    return np.repeat([fold_of[file] for file in files], sizes)


def ranked(
    graphs: Sequence[GraphRows], held_out: NDArray[np.int64], scores: NDArray[np.float64]
) -> float:
    """Return how well held-out rows are ranked, as their collection is judged; mean over graphs.

    Args:
        held_out: (h,) ascending row numbers over all graphs.
        scores: (h,) higher = faster.
    """
    values = []
    start = 0
    for graph in graphs:
        mine = slice(*np.searchsorted(held_out, [start, start + len(graph.rows)]))
        runtime = graph.runtime[held_out[mine] - start]
        start += len(graph.rows)
        if len(runtime) >= 2 and runtime.min() < runtime.max():
            judge = _judge_tile if graph.file.collection.kind == "tile" else kendall_tau
            values.append(judge(-scores[mine], runtime))
    return float(np.mean(values)) if values else 0.0


def _judge_tile(scores: NDArray[np.float64], runtime: NDArray[np.float64]) -> float:
    return tile_score(np.argsort(scores, kind="stable"), runtime)
