"""Ranking losses over the c configs of one kernel: those for layouts, and one for the tile score.

As in models/training/losses.py, scores are runtime-like: the LOWER a score, the faster the config.
"""

import torch
from torch import Tensor

from common.metrics import TILE_PICKS
from models.training.losses import LOSSES, Loss, list_mle


def expected_best(scores: Tensor, runtime: Tensor, *, picks: int = TILE_PICKS) -> Tensor:
    """Slowdown of the best of `picks` configs drawn by softmax(-scores), on average.

    Drawn independently, the same config twice or not, the best is config i or a slower one with
    probability S(i)^picks, where S(i) is the share of i and all slower ones. With runtimes r sorted
    from the fastest up, the best then takes on average

        r(1) + sum over i > 1 of (r(i) - r(i - 1)) S(i)^picks.

    Where a model cannot tell which of a few configs is the fastest, it gains by a share for each.

    Args:
        scores: (c,) float, lower = faster.
        runtime: (c,) > 0.
        picks: how many are drawn.

    Returns:
        () >= 1, over the fastest config's runtime; differentiable in `scores`.
    """
    sorted_runtime, order = torch.sort(runtime, stable=True)  # (c,) fastest first
    share = torch.softmax(-scores.float(), dim=0)[order]
    from_here = share.flip(0).cumsum(0).flip(0)  # (c,) S(1) = 1, S(2), …
    further = (sorted_runtime.diff() / sorted_runtime[0]).to(share.dtype)  # (c - 1,)
    return 1 + (further * from_here[1:] ** picks).sum()


def best_of_five(scores: Tensor, runtime: Tensor) -> Tensor:
    """ListMLE plus the logarithm of the `expected_best` of five picks; () >= 0.

    The tile score asks for one good config among five and for no order below. That alone teaches
    little about configs that are never among the five; the order alone weighs a slow pick that
    costs the score as much as one far down.
    """
    return list_mle(scores, runtime) + torch.log(expected_best(scores, runtime))


TILE_LOSSES: dict[str, Loss] = {**LOSSES, "best_of_five": best_of_five}
