"""The loss for the best of five picks, against every possible draw."""

from itertools import product

import pytest
import torch

from models.training.losses import best_of_five, expected_best, list_mle

RUNTIME = torch.tensor([3.0, 1.0, 4.0, 1.0, 7.0], dtype=torch.float64) * 1_000
SCORES = torch.tensor([0.3, -0.2, 1.1, 0.9, -1.5])


def _brute_force(scores: torch.Tensor, runtime: torch.Tensor, picks: int) -> float:
    share = torch.softmax(-scores.double(), dim=0)
    return sum(
        float(share[list(drawn)].prod() * runtime[list(drawn)].min() / runtime.min())
        for drawn in product(range(len(runtime)), repeat=picks)
    )


@pytest.mark.parametrize("picks", [1, 2, 5])
def test_expected_best_is_the_mean_over_all_draws(picks: int) -> None:
    found = expected_best(SCORES, RUNTIME, picks=picks)
    assert float(found) == pytest.approx(_brute_force(SCORES, RUNTIME, picks), rel=1e-5)


def test_expected_best_depends_neither_on_the_order_nor_on_the_unit() -> None:
    order = torch.tensor([4, 2, 0, 3, 1])
    found = expected_best(SCORES, RUNTIME)
    torch.testing.assert_close(expected_best(SCORES[order], RUNTIME[order] * 7), found)


def test_a_share_for_each_candidate_beats_all_for_one() -> None:
    """Which of two configs is the fastest is open: one score for both must serve either."""
    certain, hedged = torch.tensor([-9.0, 0.0, 0.0]), torch.tensor([-9.0, -9.0, 0.0])
    either = [torch.tensor([1.0, 3.0, 9.0]), torch.tensor([3.0, 1.0, 9.0])]
    one = sum(expected_best(certain, runtime) for runtime in either)
    both = sum(expected_best(hedged, runtime) for runtime in either)
    assert both < one - 1


def test_best_of_five_adds_the_two_and_pulls_the_fastest_down() -> None:
    scores = SCORES.clone().requires_grad_()
    loss = best_of_five(scores, RUNTIME)
    expected = list_mle(SCORES, RUNTIME) + torch.log(expected_best(SCORES, RUNTIME))
    torch.testing.assert_close(loss.detach(), expected)
    loss.backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    assert scores.grad[1] > 0 > scores.grad[4]


def test_equal_runtimes_teach_nothing_and_large_scores_do_not_overflow() -> None:
    scores = (SCORES * 1e4).requires_grad_()
    loss = best_of_five(scores, torch.ones(5, dtype=torch.float64))
    loss.backward()
    assert float(loss.detach()) == 0 and scores.grad is not None and not scores.grad.any()
    assert best_of_five(SCORES * 1e4, RUNTIME).isfinite()
