"""Ranking losses over the c configs of one graph, or of each of many.

Each takes scores (…, c) float and runtimes (…, c) int or float of any unit, and returns (…) >= 0,
differentiable in the scores; it raises ValueError where the two are not of one shape. The LOWER a
score, the faster the config is predicted to be; half precision is raised to float32. Two configs of
equal runtime are never compared, so a graph whose runtimes are all equal has a loss of exactly zero
with a zero gradient; scores in the right order and far apart have a loss of zero, and such in the
wrong order a gradient (a loss that levels off there, as a sigmoid does, would never mend them). An
infinite runtime is padding, which counts for nothing. Hand runtimes over as int64 or float64:
float32 merges close ones. No loss waits for a GPU; the pairwise ones take O(c²) memory.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from common.metrics import TILE_PICKS

Loss = Callable[[Tensor, Tensor], Tensor]


def pairwise_hinge(scores: Tensor, runtime: Tensor) -> Tensor:
    """Mean of max(0, 1 - (s_j - s_i)) over the pairs where config i is faster than j.

    The ranking SVM's loss (Joachims, "Optimizing Search Engines using Clickthrough Data", 2002).
    """
    scores = _checked_scores(scores, runtime)
    return _mean_over_pairs(F.relu(1.0 - _gaps(scores)), runtime)


def pairwise_logistic(scores: Tensor, runtime: Tensor) -> Tensor:
    """Mean of ln(1 + exp(-(s_j - s_i))) over the pairs where config i is faster than j.

    RankNet's loss (Burges et al., "Learning to Rank using Gradient Descent", 2005): a hinge without
    a corner, which never stops asking for a wider gap.
    """
    scores = _checked_scores(scores, runtime)
    return _mean_over_pairs(F.softplus(-_gaps(scores)), runtime)


def list_mle(scores: Tensor, runtime: Tensor) -> Tensor:
    """Negative log-likelihood of being picked before all slower configs; mean over those with any.

    ListMLE (Xia et al., "Listwise Approach to Learning to Rank", 2008): under a Plackett-Luce
    model with utility u = -score, config i wins against the strictly slower configs S(i) with
    probability exp(u_i) / (exp(u_i) + sum over S(i) of exp(u_j)). Without ties that is ListMLE
    itself; configs of equal runtime are left out of each other's sums, which makes the loss
    independent of the row order. The sums are running log-sum-exps from the slowest config
    upwards, so that scores of any size neither overflow nor vanish.
    """
    scores, runtime, is_padding = _fastest_first(_checked_scores(scores, runtime), runtime)
    utility = (-scores).masked_fill(is_padding, torch.finfo(scores.dtype).min / 4)
    from_here = utility.flip(-1).logcumsumexp(dim=-1).flip(-1)  # (…, c) over i, i + 1, …
    # (…, c) where the strictly slower configs begin; the end of all for those that have none
    slower = torch.searchsorted(runtime, runtime, right=True)
    slowest = runtime.shape[-1] - 1 - is_padding.sum(dim=-1, keepdim=True)
    has_slower = slower <= slowest
    advantage = utility - from_here.gather(-1, slower.clamp(max=runtime.shape[-1] - 1))
    losses = -F.logsigmoid(advantage) * has_slower
    return losses.sum(dim=-1) / has_slower.sum(dim=-1).clamp(min=1)


def expected_best(scores: Tensor, runtime: Tensor, *, picks: int = TILE_PICKS) -> Tensor:
    """Slowdown of the best of `picks` configs drawn by softmax(-scores), on average; (…) >= 1.

    Drawn independently, the same config twice or not, the best is config i or a slower one with
    probability S(i)^picks, where S(i) is the share of i and all slower ones. With runtimes r sorted
    from the fastest up, the best then takes on average

        r(1) + sum over i > 1 of (r(i) - r(i - 1)) S(i)^picks.
    """
    utility = (-_checked_scores(scores, runtime)).masked_fill(runtime == torch.inf, -torch.inf)
    share, runtime, is_padding = _fastest_first(torch.softmax(utility, dim=-1), runtime)
    from_here = share.flip(-1).cumsum(dim=-1).flip(-1)  # (…, c) S(1) = 1, S(2), …
    further = (runtime.diff() / runtime[..., :1]).to(share.dtype)  # (…, c - 1)
    further = further.masked_fill(is_padding[..., 1:], 0)
    return 1 + (further * from_here[..., 1:] ** picks).sum(dim=-1)


def best_of_five(scores: Tensor, runtime: Tensor) -> Tensor:
    """ListMLE plus the logarithm of the `expected_best` of five picks, those of the tile score."""
    return list_mle(scores, runtime) + torch.log(expected_best(scores, runtime))


LOSSES: dict[str, Loss] = {
    "pairwise_hinge": pairwise_hinge,
    "pairwise_logistic": pairwise_logistic,
    "list_mle": list_mle,
}
TILE_LOSSES: dict[str, Loss] = {**LOSSES, "best_of_five": best_of_five}


def _gaps(scores: Tensor) -> Tensor:
    """Return (…, c, c): s_j - s_i in row i, column j."""
    return scores[..., None, :] - scores[..., :, None]


def _mean_over_pairs(terms: Tensor, runtime: Tensor) -> Tensor:
    """Average `terms` (…, c, c) where row i is faster than column j; 0 where no pair counts."""
    is_pair = (runtime[..., :, None] < runtime[..., None, :]) & (runtime < torch.inf)[..., None, :]
    return (terms * is_pair).sum((-2, -1)) / is_pair.sum((-2, -1)).clamp(min=1)


def _fastest_first(values: Tensor, runtime: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort configs by runtime: their values and runtimes, and which are padding; (…, c) each."""
    runtime, order = torch.sort(runtime, stable=True)
    return values.gather(-1, order), runtime, runtime == torch.inf


def _checked_scores(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return scores in float32 or wider, or raise ValueError on other shapes than (…, c) both."""
    if not scores.ndim or scores.shape != runtime.shape:
        raise ValueError(
            f"expected scores and runtimes of one shape (…, c); "
            f"got {tuple(scores.shape)} and {tuple(runtime.shape)}"
        )
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
