"""Ranking losses over the c configs of one graph, or of each of many.

Arguments: each loss takes float scores (…, c), and int64 or float64 runtimes (…, c) of any unit.
float32 runtimes merge close values. A LOWER score means a faster config. Half precision is raised
to float32. An infinite runtime is padding, which has no effect.

Result: each loss returns (…) >= 0, differentiable in the scores. Configs of equal runtime are never
compared, so a graph of equal runtimes has a loss of exactly 0 and a zero gradient. Scores in the
right order and far apart have a loss of 0. Scores in the wrong order always have a gradient. In
contrast, the gradient of a sigmoid vanishes.

Errors and cost: each loss raises ValueError if the shapes differ. No loss waits for a GPU. Pairwise
losses take O(c²) memory.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from common.metrics import TILE_PICKS

Loss = Callable[[Tensor, Tensor], Tensor]


def pairwise_hinge(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return the mean of max(0, 1 - (s_j - s_i)) over pairs with config i faster than j.

    This is the ranking SVM's loss (Joachims, "Optimizing Search Engines using Clickthrough Data",
    2002).

    Args:
        scores: (…, c) scores.
        runtime: (…, c) runtimes.
    """
    scores = _checked_scores(scores, runtime)
    return _mean_over_pairs(F.relu(1.0 - _gaps(scores)), runtime)


def pairwise_logistic(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return the mean of ln(1 + exp(-(s_j - s_i))) over pairs with config i faster than j.

    This is RankNet's loss (Burges et al., "Learning to Rank using Gradient Descent", 2005). It is a
    smooth hinge whose gradient never ends.

    Args:
        scores: (…, c) scores.
        runtime: (…, c) runtimes.
    """
    scores = _checked_scores(scores, runtime)
    return _mean_over_pairs(F.softplus(-_gaps(scores)), runtime)


def list_mle(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return the mean negative log-likelihood that a config is picked before all slower configs.

    This is ListMLE (Xia et al., "Listwise Approach to Learning to Rank", 2008), a Plackett-Luce
    model with utility u = -score. Config i wins against the strictly slower configs S(i) with
    probability exp(u_i) / (exp(u_i) + sum over S(i) of exp(u_j)). Configs of equal runtime are not
    in each other's sums, so the loss does not depend on the order of rows. The sums are running
    log-sum-exps from the slowest config, which neither overflow nor vanish. The mean is over
    configs with a slower config.

    Args:
        scores: (…, c) scores.
        runtime: (…, c) runtimes.
    """
    scores, runtime, is_padding = _fastest_first(_checked_scores(scores, runtime), runtime)
    utility = (-scores).masked_fill(is_padding, torch.finfo(scores.dtype).min / 4)
    from_here = utility.flip(-1).logcumsumexp(dim=-1).flip(-1)  # (…, c) over i, i + 1, …
    # (…, c) position of the first strictly slower config, or the end.
    slower = torch.searchsorted(runtime, runtime, right=True)
    slowest = runtime.shape[-1] - 1 - is_padding.sum(dim=-1, keepdim=True)
    has_slower = slower <= slowest
    advantage = utility - from_here.gather(-1, slower.clamp(max=runtime.shape[-1] - 1))
    losses = -F.logsigmoid(advantage) * has_slower
    return losses.sum(dim=-1) / has_slower.sum(dim=-1).clamp(min=1)


def expected_best(scores: Tensor, runtime: Tensor, *, picks: int = TILE_PICKS) -> Tensor:
    """Return the mean slowdown of the best of `picks` configs sampled by softmax(-scores).

    The sample has independent draws with repeats. The best is config i or a slower one with
    probability S(i)^picks, where S(i) is the share of i and all slower configs. With runtimes r in
    ascending order, the best takes on average

        r(1) + sum over i > 1 of (r(i) - r(i - 1)) S(i)^picks.

    Args:
        scores: (…, c) scores.
        runtime: (…, c) runtimes.
        picks: Number of draws.

    Returns:
        (…) slowdowns >= 1.
    """
    utility = (-_checked_scores(scores, runtime)).masked_fill(runtime == torch.inf, -torch.inf)
    share, runtime, is_padding = _fastest_first(torch.softmax(utility, dim=-1), runtime)
    from_here = share.flip(-1).cumsum(dim=-1).flip(-1)  # (…, c) S(1) = 1, S(2), …
    further = (runtime.diff() / runtime[..., :1]).to(share.dtype)  # (…, c - 1)
    further = further.masked_fill(is_padding[..., 1:], 0)
    return 1 + (further * from_here[..., 1:] ** picks).sum(dim=-1)


def best_of_five(scores: Tensor, runtime: Tensor) -> Tensor:
    """Return ListMLE plus the logarithm of `expected_best` for the five picks of the tile score.

    Args:
        scores: (…, c) scores.
        runtime: (…, c) runtimes.
    """
    return list_mle(scores, runtime) + torch.log(expected_best(scores, runtime))


LOSSES: dict[str, Loss] = {
    "pairwise_hinge": pairwise_hinge,
    "pairwise_logistic": pairwise_logistic,
    "list_mle": list_mle,
}
TILE_LOSSES: dict[str, Loss] = {**LOSSES, "best_of_five": best_of_five}


def _gaps(scores: Tensor) -> Tensor:
    return scores[..., None, :] - scores[..., :, None]  # (…, c, c): s_j - s_i in row i, column j


def _mean_over_pairs(terms: Tensor, runtime: Tensor) -> Tensor:
    is_pair = (runtime[..., :, None] < runtime[..., None, :]) & (runtime < torch.inf)[..., None, :]
    return (terms * is_pair).sum((-2, -1)) / is_pair.sum((-2, -1)).clamp(min=1)


def _fastest_first(values: Tensor, runtime: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    runtime, order = torch.sort(runtime, stable=True)
    return values.gather(-1, order), runtime, runtime == torch.inf


def _checked_scores(scores: Tensor, runtime: Tensor) -> Tensor:
    if not scores.ndim or scores.shape != runtime.shape:
        raise ValueError(
            f"expected scores and runtimes of one shape (…, c); "
            f"got {tuple(scores.shape)} and {tuple(runtime.shape)}"
        )
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
