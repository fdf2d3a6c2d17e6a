"""RankNet's loss for boosting (Burges et al., 2005): every pair of a group counts alike.

LambdaRank weighs a pair by what swapping it would change of NDCG, which favours the top, and
rank_xendcg compares lists by gains as well; Kendall's tau counts all pairs alike, as this does.
LightGBM has no such objective of its own.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import lightgbm

MAX_PAIRS = 1 << 21  # looked at at once

Objective = Callable[
    [NDArray[np.float64], "lightgbm.Dataset"], tuple[NDArray[np.float32], NDArray[np.float32]]
]


def pairwise_logistic(runtime: NDArray[np.float64], sizes: Sequence[int]) -> Objective:
    """Return an objective for LightGBM.

    The loss of a group of g rows is 1/g · Σ log(1 + exp(s_slow − s_fast)) over its pairs of
    different runtime; a higher score s means faster.

    Args:
        runtime: (r,) of the training rows.
        sizes: of consecutive groups, adding up to r.
    """
    ends = np.cumsum(sizes)

    def objective(
        scores: NDArray[np.float64], dataset: "lightgbm.Dataset"
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        gradient, hessian = np.empty(len(scores), np.float32), np.empty(len(scores), np.float32)
        for end, size in zip(ends, sizes, strict=True):
            part = slice(end - size, end)
            gradient[part], hessian[part] = _group(scores[part], runtime[part])
        return gradient, hessian

    return objective


def _group(
    scores: NDArray[np.float64], runtime: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the gradient and the diagonal of the Hessian of one group (g,); rows in blocks."""
    g = len(scores)
    scores, runtime = scores.astype(np.float32), runtime.astype(np.float64)
    gradient, hessian = np.empty(g, np.float32), np.empty(g, np.float32)
    step = max(1, MAX_PAIRS // g)
    for start in range(0, g, step):
        rows = slice(start, start + step)
        is_faster = np.sign(runtime - runtime[rows, None]).astype(np.float32)  # (b, g)
        margin = is_faster * (scores[rows, None] - scores)
        wrong = np.abs(is_faster) / (1 + np.exp(np.clip(margin, -30, 30)))
        gradient[rows] = -(is_faster * wrong).sum(axis=1) / g
        hessian[rows] = (wrong * (1 - wrong)).sum(axis=1) / g
    return gradient, np.maximum(hessian, 1e-6)
