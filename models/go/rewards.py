"""How long choices run over a baseline: measured, or as a ranker guesses.

b choices of g genes.
"""

from collections.abc import Callable
from math import ceil
from statistics import median

import numpy as np
from numpy.typing import NDArray

from models.go.graph import DecisionGraph
from models.go.ppo import Choices, Reward

PROMISING = 0.25  # share of new choices, the fastest, that are measured again
AGAIN = 3  # rounds

# Runtime in ns of a config by its number, in a round, under its choice (g,); inf if it fails.
Visit = Callable[[int, int, NDArray[np.int64]], float]
# Scores (b,) of choices (b, g) of a graph, lower = faster.
Score = Callable[[DecisionGraph, Choices], NDArray[np.floating]]


class MeasuredReward:
    """Runtimes of one program's choices over its baseline's, in two stages.

    New choices are measured once, beside the baseline. The fastest quarter of them are mostly
    lucky: they are measured again in rounds with the baseline, and the median of those ratios
    alone counts. What was measured before is not measured again.

    Args:
        visit: as `Visitor.visit`; config 0 is the baseline, the others are numbered as they come.
        baseline: (g,).

    Attributes:
        ratios: by choice, in the order of their first visits; as many were compiled, and the
            baseline.
    """

    def __init__(self, visit: Visit, baseline: NDArray[np.int64]) -> None:
        self._visit, self._baseline = visit, baseline
        self._turn = -1
        self._numbers: dict[tuple[int, ...], int] = {tuple(baseline.tolist()): 0}
        self.ratios: dict[tuple[int, ...], float] = {tuple(baseline.tolist()): 1.0}

    def __call__(self, graph: DecisionGraph, choices: Choices) -> NDArray[np.float64]:
        """Return the ratios (b,) of choices (b, g), inf for those that fail."""
        rows = [tuple(row) for row in choices.tolist()]
        new = [row for row in dict.fromkeys(rows) if row not in self.ratios]
        if new:
            self.ratios |= self._round(new)
            ran = [row for row in new if np.isfinite(self.ratios[row])]
            promising = sorted(ran, key=self.ratios.__getitem__)[: ceil(PROMISING * len(ran))]
            rounds = [self._round(promising) for _ in range(AGAIN if promising else 0)]
            self.ratios |= {row: median(found[row] for found in rounds) for row in promising}
        return np.array([self.ratios[row] for row in rows])

    def _round(self, rows: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Visit the baseline, then choices; return their ratios."""
        self._turn += 1
        base_ns = self._visit(0, self._turn, self._baseline)
        found = {}
        for row in rows:
            number = self._numbers.setdefault(row, len(self._numbers))
            found[row] = self._visit(number, self._turn, np.array(row)) / base_ns
        return found


def ranked_reward(score: Score, baselines: dict[str, NDArray[np.int64]]) -> Reward:
    """Return a reward that a ranker guesses: exp((score - baseline's) / deviation).

    A ranker's scores have no unit: the deviation is that of the first choices of a graph.

    Args:
        baselines: (g,) by the graph's name.
    """
    deviations: dict[str, float] = {}

    def reward(graph: DecisionGraph, choices: Choices) -> NDArray[np.float64]:
        base, *scores = score(graph, np.concatenate([baselines[graph.name][None], choices]))
        deviation = deviations.setdefault(graph.name, max(float(np.std(scores)), 1e-9))
        return np.exp((np.array(scores, np.float64) - base) / deviation)

    return reward
