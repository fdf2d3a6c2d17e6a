"""Losses against naive loops, numerical gradients, and scores of extreme size."""

import math

import pytest
import torch
from torch import Tensor

from models.losses import LOSSES, Loss, list_mle, pairwise_hinge

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def naive_hinge(scores: list[float], runtime: list[int], margin: float) -> float:
    terms = [
        max(0.0, margin - (scores[j] - scores[i]))
        for i in range(len(scores))
        for j in range(len(scores))
        if runtime[i] < runtime[j]
    ]
    return sum(terms) / len(terms) if terms else 0.0


def naive_list_mle(scores: list[float], runtime: list[int]) -> float:
    terms = []
    for i, score in enumerate(scores):
        slower = [scores[j] for j in range(len(scores)) if runtime[j] > runtime[i]]
        if slower:
            weight = math.exp(-score)
            terms.append(-math.log(weight / (weight + sum(math.exp(-s) for s in slower))))
    return sum(terms) / len(terms) if terms else 0.0


def sample(size: int, distinct: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores (c,) float64 and runtimes (c,) int64 with about `distinct` values."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64)
    return scores, torch.randint(1, distinct + 1, (size,), generator=generator) + 10**10


@pytest.mark.parametrize("distinct", [1, 2, 5, 10**6])
@pytest.mark.parametrize("size", [1, 2, 13])
def test_losses_match_the_loops(size: int, distinct: int) -> None:
    scores, runtime = sample(size, distinct, seed=size + distinct)
    for margin in (0.1, 1.0):
        expected = naive_hinge(scores.tolist(), runtime.tolist(), margin)
        assert pairwise_hinge(scores, runtime, margin=margin).item() == pytest.approx(expected)
    expected = naive_list_mle(scores.tolist(), runtime.tolist())
    assert list_mle(scores, runtime).item() == pytest.approx(expected)


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
    value = loss(scores, torch.arange(8))
    value.backward()
    assert value.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    if scale > 0:  # the order is right, far beyond any margin
        assert value.item() == 0
    else:  # wrong all over: the fastest has to come down, the slowest up
        assert value.item() > 1e4
        assert scores.grad[0] > 0 > scores.grad[-1]


@every_loss
def test_low_scores_are_fast(loss: Loss) -> None:
    runtime = torch.tensor([30, 10, 20])
    right = torch.tensor([3.0, 1.0, 2.0])
    assert loss(right, runtime) < loss(torch.zeros(3), runtime) < loss(-right, runtime)


@every_loss
def test_row_order_does_not_matter(loss: Loss) -> None:
    scores, runtime = sample(20, 4, seed=1)
    shuffled = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    assert loss(scores[shuffled], runtime[shuffled]).item() == pytest.approx(
        loss(scores, runtime).item()
    )


@every_loss
def test_descent_finds_the_order(loss: Loss) -> None:
    _, runtime = sample(12, 10**6, seed=3)
    scores = torch.zeros(12, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(scores, runtime).backward()
        optimizer.step()
    assert torch.equal(scores.argsort(), runtime.argsort())


@every_loss
def test_half_precision_scores_are_raised(loss: Loss) -> None:
    scores = torch.tensor([2.0, 1.0, 3.0], dtype=torch.bfloat16)
    runtime = torch.tensor([1, 2, 3])
    assert loss(scores, runtime).dtype == torch.float32
    assert loss(scores, runtime) == loss(scores.float(), runtime)


@every_loss
def test_shapes_that_do_not_match_are_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        loss(torch.zeros(3), torch.arange(2))
    with pytest.raises(ValueError, match="one shape"):
        loss(torch.zeros(3, 1), torch.zeros(3, 1))
