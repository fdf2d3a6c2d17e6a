"""Greedy selection of members with replacement.

Caruana, Niculescu-Mizil, Crew, Ksikes: "Ensemble Selection from Libraries of Models", ICML 2004.
"""

import numpy as np
from numpy.typing import NDArray

from ensembles.choice.objectives import Objective

MAX_SELECTED = 50
LEAST_GAIN = 1e-6  # below this it is rounding


def greedy_counts(
    objective: Objective, n_members: int, *, max_selected: int = MAX_SELECTED
) -> NDArray[np.float64]:
    """Start from the best member; add, again and again, the one that improves the mean most.

    A member may be added many times, which gives it weight; it ends where none improves. Among
    additions of equal gain one that is selected already comes first, then the first in order.

    Args:
        objective: weightings (q, m), each summing to 1, to their value (q,); more is better.

    Returns:
        (m,) how often each was selected.
    """
    additions = np.eye(n_members)
    values = objective(additions)
    counts = additions[_first_best(values, np.zeros(n_members))].copy()
    value = float(values.max())
    while counts.sum() < max_selected:
        values = objective((counts + additions) / (counts.sum() + 1))
        if values.max() <= value + LEAST_GAIN:
            break
        counts[_first_best(values, counts)] += 1
        value = float(values.max())
    return counts


def _first_best(values: NDArray[np.float64], counts: NDArray[np.float64]) -> int:
    """Return the best member; of equals one that is selected already, then the first."""
    equal = values >= values.max() - LEAST_GAIN
    return int(np.argmax(equal & (counts > 0)) if (equal & (counts > 0)).any() else equal.argmax())
