"""Ranking losses over the c configs of one graph.

Scores are runtime-like: the LOWER a score, the faster the config is predicted to be. Two configs
of equal runtime are never compared, so a graph whose runtimes are all equal has a loss of exactly
zero with a zero gradient. Runtimes are only compared with each other; hand them over as int64 or
float64, because float32 merges runtimes that differ by less than one part in ten million.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]


def pairwise_hinge(scores: Tensor, runtime: Tensor, *, margin: float = 1.0) -> Tensor:
    """Mean of max(0, margin - (s_j - s_i)) over the pairs where config i is faster than j.

    The ranking SVM's loss (Joachims, "Optimizing Search Engines using Clickthrough Data", 2002).
    Takes O(c²) memory: meant for the sample of configs of one training step, not a whole file.

    Args:
        scores: (c,) float, lower = faster; half precision is raised to float32.
        runtime: (c,) int or float, any unit.
        margin: by how much the slower config's score should exceed the faster one's.

    Returns:
        () >= 0, differentiable in `scores`.

    Raises:
        ValueError: `scores` and `runtime` are not of one shape (c,).
    """
    scores = _checked_scores(scores, runtime)
    is_pair = runtime[:, None] < runtime[None, :]  # (c, c): row i is faster than column j
    gap = scores[None, :] - scores[:, None]  # (c, c): s_j - s_i
    hinge = F.relu(margin - gap) * is_pair
    return hinge.sum() / is_pair.sum().clamp(min=1)


def list_mle(scores: Tensor, runtime: Tensor) -> Tensor:
    """Mean negative log-likelihood of each config being picked before all slower ones.

    ListMLE (Xia et al., "Listwise Approach to Learning to Rank", 2008): under a Plackett-Luce
    model with utility u = -score, config i wins against the strictly slower configs S(i) with
    probability exp(u_i) / (exp(u_i) + sum over S(i) of exp(u_j)). Without ties that is ListMLE
    itself; configs of equal runtime are left out of each other's sums, which makes the loss
    independent of the row order. The sums are running log-sum-exps from the slowest config
    upwards, so that scores of any size neither overflow nor vanish.

    Args:
        scores: (c,) float, lower = faster; half precision is raised to float32.
        runtime: (c,) int or float, any unit.

    Returns:
        () >= 0, the mean over the configs that have a slower one; differentiable in `scores`.

    Raises:
        ValueError: `scores` and `runtime` are not of one shape (c,).
    """
    scores = _checked_scores(scores, runtime)
    sorted_runtime, order = torch.sort(runtime, stable=True)  # (c,) fastest first
    utility = -scores[order]
    from_here = torch.logcumsumexp(utility.flip(0), dim=0).flip(0)  # (c,) over i, i + 1, …
    # (c,) where the strictly slower configs begin; c for those that have none
    slower = torch.searchsorted(sorted_runtime, sorted_runtime, right=True)
    has_slower = slower < len(scores)
    advantage = utility[has_slower] - from_here[slower[has_slower]]
    return -F.logsigmoid(advantage).sum() / has_slower.sum().clamp(min=1)


LOSSES: dict[str, Loss] = {"pairwise_hinge": pairwise_hinge, "list_mle": list_mle}


def _checked_scores(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return (c,) scores in float32 or wider, or raise ValueError on other shapes."""
    if scores.ndim != 1 or scores.shape != runtime.shape:
        raise ValueError(
            f"expected scores and runtimes of one shape (c,); "
            f"got {tuple(scores.shape)} and {tuple(runtime.shape)}"
        )
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
