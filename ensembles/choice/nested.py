"""Values of blends on graphs that their weights were not fitted to, and the best by these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ensembles.choice.greedy import greedy_counts
from ensembles.choice.objectives import Judge, Metric, Objective, exact_values
from ensembles.choice.scored_graphs import ScoredGraphs
from ensembles.choice.search import search_weights
from ensembles.choice.stacking import Moments, moments, stacked_weights
from models.training.jobs import Progress

Floats = NDArray[np.float64]

TIE = 1e-9


@dataclass(frozen=True)
class Training:
    """What weights are fitted to: some of the graphs."""

    objective: Objective
    moments: Moments
    n_members: int


def _greedy(training: Training) -> Floats:
    return greedy_counts(training.objective, training.n_members)


def _searched(training: Training) -> Floats:
    even = np.ones(training.n_members)
    starts = (even, stacked_weights(training.moments), _greedy(training))
    return search_weights(training.objective, training.n_members, starts=starts)


# Simplest first: that order decides among equals.
FITS: dict[str, Callable[[Training], Floats]] = {
    "stacked": lambda training: stacked_weights(training.moments),
    "greedy": _greedy,
    "searched": _searched,
}


class Nested:
    """The values of candidates on folds, each fit made once.

    The inner cross-validation of outer fold a judges fold b by a fit without a and b; so does that
    of b for a: k folds need k(k - 1)/2 of these fits and k without one fold.
    """

    def __init__(
        self,
        graphs: ScoredGraphs,
        fixed: Mapping[str, Floats],
        folds: Sequence[Sequence[int]],
        *,
        metric: Metric,
        judge: Judge,
        progress: Progress | None = None,
    ) -> None:
        self.graphs, self.metric, self.judge, self.progress = graphs, metric, judge, progress
        self.folds = [list(fold) for fold in folds]
        self.every = frozenset(range(len(self.folds)))
        self.moments = moments(graphs)
        self.fixed_values = {
            name: exact_values(graphs, scores, metric) for name, scores in fixed.items()
        }
        own = [exact_values(graphs, column, metric) for column in graphs.scores.T]
        self.member_values = np.stack(own, axis=1)  # (g, m)
        self._fits: dict[tuple[str, frozenset[int]], Floats] = {}
        self._judged: dict[tuple[str, frozenset[int], int], Floats] = {}

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
        values = {name: self.judged(name, folds).mean() for name in [*self.fixed_values, *FITS]}
        best = max(values.values())
        return next(name for name, value in values.items() if value >= best - TIE)

    def best_member(self, folds: frozenset[int]) -> Floats:
        """Return (m,) weights of the member that is best on `folds` alone; the first of equals."""
        rows = [index for fold in folds for index in self.folds[fold]]
        means = self.member_values[rows].mean(axis=0)
        weights = np.zeros(len(means))
        weights[int(np.argmax(means >= means.max() - TIE))] = 1
        return weights

    def judged(self, name: str, folds: frozenset[int] | None = None) -> Floats:
        """Return a blend's values on each of `folds` (or all), fitted to the others of them."""
        folds = self.every if folds is None else folds
        outside = self.every - folds
        parts = [self._on_fold(name, outside | {fold}, fold) for fold in sorted(folds)]
        return np.concatenate(parts)

    def weights_of(self, name: str, without: frozenset[int]) -> Floats:
        """Return a blend's weights (m,), fitted to all folds but `without`."""
        if name in self.fixed_values:
            return np.ones(len(self.graphs.members))
        if (name, without) not in self._fits:
            training = self._training(without)
            for fitted, fit in FITS.items():
                self._fits[fitted, without] = fit(training)
            if self.progress:
                n_folds = len(self.folds)
                done = len(self._fits) // len(FITS)
                self.progress("choose a blend", done, n_folds * (n_folds + 1) // 2)
        return self._fits[name, without]

    def _training(self, without: frozenset[int]) -> Training:
        used = [i for fold, own in enumerate(self.folds) if fold not in without for i in own]
        per_graph = Moments(self.moments.squares[used], self.moments.products[used])
        return Training(self.judge(used), per_graph, len(self.graphs.members))

    def _on_fold(self, name: str, without: frozenset[int], fold: int) -> Floats:
        """Return a candidate's values on one fold, fitted to all folds but `without`."""
        held = self.folds[fold]
        if name in self.fixed_values:
            return self.fixed_values[name][held]
        key = (name, without, fold)
        if key not in self._judged:
            weights = self.weights_of(name, without)
            part = self.graphs.part(held)
            scores = part.scores @ (weights / weights.sum())
            self._judged[key] = exact_values(part, scores, self.metric)
        return self._judged[key]
