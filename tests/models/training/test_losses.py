"""Losses against naive loops, numerical gradients, and scores of extreme size."""

import math
from functools import partial
from itertools import product
from typing import get_args

import pytest
import torch
from torch import Tensor

from models.config.networks import LayoutGnnConfig, LossName, TileGnnConfig, TileLossName
from models.training.losses import LOSSES, TILE_LOSSES, Loss, expected_best

every_loss = pytest.mark.parametrize("loss", TILE_LOSSES.values(), ids=TILE_LOSSES.keys())


def naive_mean(term, scores: list[float], runtime: list[int]) -> float:
    """Mean of term(s_j - s_i) over the pairs where i is faster."""
    total, count = 0.0, 0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if runtime[i] < runtime[j]:
                total += term(scores[j] - scores[i])
                count += 1
    return total / max(1, count)


def naive_list_mle(scores: list[float], runtime: list[int]) -> float:
    terms = []
    for i, score in enumerate(scores):
        slower = [scores[j] for j in range(len(scores)) if runtime[j] > runtime[i]]
        if slower:
            weight = math.exp(-score)
            terms.append(-math.log(weight / (weight + sum(math.exp(-s) for s in slower))))
    return sum(terms) / len(terms) if terms else 0.0


# A slow reference of each loss. "best_of_five" has separate tests.
NAIVE = {
    "pairwise_hinge": partial(naive_mean, lambda gap: max(0.0, 1.0 - gap)),
    "pairwise_logistic": partial(naive_mean, lambda gap: math.log(1 + math.exp(-gap))),
    "list_mle": naive_list_mle,
}


def sample(size: int, distinct: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores (c,) float64 and runtimes (c,) int64 with about `distinct` values."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64)
    return scores, torch.randint(1, distinct + 1, (size,), generator=generator) + 10**10


def test_recipes_can_name_every_loss_and_no_other() -> None:
    assert {*get_args(LossName)} == {*LOSSES}
    assert {*get_args(TileLossName)} == {*TILE_LOSSES}


def test_the_page_of_recipe_keys_describes_every_loss() -> None:
    described = (LayoutGnnConfig.__doc__ or "") + (TileGnnConfig.__doc__ or "")
    assert [name for name in TILE_LOSSES if f'"{name}"' not in described] == []


@pytest.mark.parametrize("distinct", [1, 2, 5, 10**6])
@pytest.mark.parametrize("size", [1, 2, 13])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_matches_its_slow_reference(name: str, size: int, distinct: int) -> None:
    scores, runtime = sample(size, distinct, seed=size + distinct)
    slow = NAIVE[name](scores.tolist(), runtime.tolist())
    assert LOSSES[name](scores, runtime).item() == pytest.approx(slow)


@every_loss
@pytest.mark.parametrize("distinct", [3, 10**6])
def test_gradients_are_right(loss: Loss, distinct: int) -> None:
    scores, runtime = sample(9, distinct, seed=4)
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, runtime), (scores,))


@every_loss
@pytest.mark.parametrize("size", [1, 6])
def test_equal_runtimes_teach_nothing(loss: Loss, size: int) -> None:
    scores = torch.randn(size, requires_grad=True)
    value = loss(scores, torch.full((size,), 5))
    value.backward()
    assert value.item() == 0
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros(size))


@every_loss
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_huge_scores_stay_finite(loss: Loss, scale: float) -> None:
    scores = (torch.arange(8.0) * scale).requires_grad_()
    value = loss(scores, torch.arange(1, 9))
    value.backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    if scale > 0:  # the order is right, far beyond any margin
        assert value.item() == 0
    else:  # wrong all over: the fastest has to come down, the slowest up
        assert 1e4 < value.item() < math.inf
        assert scores.grad[0] > 0 > scores.grad[-1]


@every_loss
def test_half_precision_scores_are_raised(loss: Loss) -> None:
    scores = torch.tensor([2.0, 1.0, 3.0], dtype=torch.bfloat16)
    runtime = torch.tensor([1, 2, 3])
    assert loss(scores, runtime).dtype == torch.float32
    assert loss(scores, runtime) == loss(scores.float(), runtime)


@every_loss
def test_a_padded_batch_has_the_losses_of_each_graph_alone(loss: Loss) -> None:
    samples = [sample(*shape, seed=7) for shape in ((9, 4), (1, 1), (5, 1), (3, 3))]
    scores = torch.full((2, 2, 9), 1e3, dtype=torch.float64)
    runtime = torch.full((2, 2, 9), torch.inf, dtype=torch.float64)
    expected, gradients = [], torch.zeros(4, 9, dtype=torch.float64)
    for row, (of_row, its_runtime) in enumerate(samples):
        scores.view(4, 9)[row, : len(of_row)] = of_row
        runtime.view(4, 9)[row, : len(of_row)] = its_runtime
        expected.append(loss(of_row.requires_grad_(), its_runtime))
        gradients[row, : len(of_row)] = torch.autograd.grad(expected[-1], of_row)[0]
    found = loss(scores.requires_grad_(), runtime)
    torch.testing.assert_close(found, torch.stack(expected).view(2, 2))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), scores)[0].view(4, 9), gradients)


RUNTIME = torch.tensor([3.0, 1.0, 4.0, 1.0, 7.0], dtype=torch.float64) * 1_000
SCORES = torch.tensor([0.3, -0.2, 1.1, 0.9, -1.5])


@pytest.mark.parametrize("picks", [1, 2, 5])
def test_expected_best_is_the_mean_over_all_draws(picks: int) -> None:
    share = torch.softmax(-SCORES.double(), dim=0)
    expected = sum(
        float(share[list(drawn)].prod() * RUNTIME[list(drawn)].min() / RUNTIME.min())
        for drawn in product(range(5), repeat=picks)
    )
    found = expected_best(SCORES, RUNTIME, picks=picks)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    order = torch.tensor([4, 2, 0, 3, 1])
    moved = expected_best(SCORES[order], RUNTIME[order] * 7, picks=picks)
    torch.testing.assert_close(moved, found)
