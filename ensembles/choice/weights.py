"""Weights of members by search: tau and the best of five are steps, without slopes.

Greedy selection with replacement: Caruana, Niculescu-Mizil, Crew, Ksikes, "Ensemble Selection from
Libraries of Models", ICML 2004. The direct search refines it on a grid.
"""

from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

from ensembles.choice.objectives import Floats, Objective

MAX_SELECTED = 50
LEAST_GAIN = 1e-6  # below this it is rounding
PARTS = 16  # weights are multiples of 1/16
MAX_TRIED_ALL = 1_000  # weightings; up to four members have fewer
MAX_MOVES = 64


def greedy_counts(objective: Objective, n_members: int) -> Floats:
    """Start from the best member; add, again and again, the one that improves the mean most.

    It ends where none improves. Returns (m,) how often each was selected.

    Args:
        objective: weightings (q, m), each summing to 1, to their value (q,); more is better.
    """
    additions = np.eye(n_members)
    values = objective(additions)
    counts = additions[_first_best(values, np.zeros(n_members))].copy()
    value = float(values.max())
    while counts.sum() < MAX_SELECTED:
        values = objective((counts + additions) / (counts.sum() + 1))
        if values.max() <= value + LEAST_GAIN:
            break
        counts[_first_best(values, counts)] += 1
        value = float(values.max())
    return counts


def _first_best(values: Floats, counts: Floats) -> int:
    equal = values >= values.max() - LEAST_GAIN
    return int(np.argmax(equal & (counts > 0)) if (equal & (counts > 0)).any() else equal.argmax())


def search_weights(
    objective: Objective, n_members: int, *, starts: Sequence[Floats], parts: int = PARTS
) -> Floats:
    """Return the best weights found among multiples of 1/`parts` that sum to 1; (m,).

    All are tried where they are few. Else parts move from one member to another, the move that
    improves most first, in steps that halve. Equal values go to fewer members.

    Args:
        objective: weightings (q, m), each summing to 1, to their value (q,); more is better.
        starts: (m,) weights each, not all 0, of any sum.
    """
    if comb(parts + n_members - 1, n_members - 1) <= MAX_TRIED_ALL:
        counts = _all_parts(n_members, parts)
    else:
        ends = [exchange_parts(objective, to_parts(start, parts)) for start in starts]
        counts = np.asarray(ends)
    return _simplest_best(counts, objective(counts / parts)) / parts


def exchange_parts(objective: Objective, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move parts between members while that improves; (m,) counts of one sum.

    No single part can be moved to advantage at the end, unless the moves were used up.
    """
    parts = int(counts.sum())
    value = float(objective(counts[None] / parts)[0])
    step = max(parts // 4, 1)
    n_moves = 0
    while n_moves < MAX_MOVES:
        moved = _moves(counts, step)
        values = objective(moved / parts) if len(moved) else np.asarray([-np.inf])
        if values.max() > value + LEAST_GAIN:
            counts, value = moved[int(values.argmax())], float(values.max())
            n_moves += 1
        elif step > 1:
            step //= 2
        else:
            break
    return counts


def to_parts(weights: Floats, parts: int = PARTS) -> NDArray[np.int64]:
    """Round weights (m,) to whole parts of the same sum, the largest remainders upwards."""
    exact = weights / weights.sum() * parts
    counts = np.floor(exact + 1e-9).astype(np.int64)
    upwards = np.argsort(counts - exact, kind="stable")[: parts - int(counts.sum())]
    counts[upwards] += 1
    return counts


def _moves(counts: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Return every way to move `step` parts from one member to another; (q, m)."""
    giver, taker = np.nonzero((counts >= step)[:, None] & ~np.eye(len(counts), dtype=bool))
    moved = np.tile(counts, (len(giver), 1))
    rows = np.arange(len(giver))
    moved[rows, giver] -= step
    moved[rows, taker] += step
    return moved


def _all_parts(n_members: int, parts: int) -> NDArray[np.int64]:
    """Return every way to share the parts out, the first member's largest share first; (q, m)."""
    counts = np.indices((parts + 1,) * n_members).reshape(n_members, -1).T[::-1]
    return counts[counts.sum(axis=1) == parts]


def _simplest_best(found: NDArray[np.int64], values: Floats) -> NDArray[np.int64]:
    n_members = np.where(values >= values.max() - LEAST_GAIN, (found > 0).sum(axis=1), np.inf)
    return found[int(n_members.argmin())]
