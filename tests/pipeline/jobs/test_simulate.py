"""Jobs done on paper: how long they take, and what they are limited by."""

import pytest

from pipeline.jobs.run_jobs import simulate
from tests.pipeline.jobs.test_run_jobs import job


def test_equal_jobs_that_are_no_multiple_of_the_workers_leave_some_idle() -> None:
    jobs = [job(str(number), 10.0) for number in range(9)]
    for n, seconds, efficiency in ((1, 90, 1), (3, 30, 1), (8, 20, 9 / 16), (20, 10, 9 / 20)):
        told = simulate(jobs, [False] * n)
        assert (told.seconds, told.efficiency) == (seconds, pytest.approx(efficiency))
        assert bool(told.limit) == (n == 20)


def test_a_way_of_jobs_that_wait_is_what_limits_many_workers() -> None:
    jobs = [job("a", 5), job("b", 9, "a", "c"), job("c", 2), *(job(f"{n}", 1) for n in range(9))]
    told = simulate(jobs, [False] * 9)
    assert told.seconds == 14 and told.limit == ["a", "b"]
    assert simulate(jobs, [False]).seconds == 25
    assert simulate([], [False]).efficiency == 1


def test_gpus_are_at_work_only_with_what_needs_one() -> None:
    jobs = [job("trees", 6), job("net", 4, on_gpu=True), job("other", 4, on_gpu=True)]
    told = simulate(jobs, [True, False])
    assert (told.seconds, told.efficiency) == (8, 1)
    alone = simulate(jobs, [True])
    assert (alone.seconds, alone.efficiency) == (14, pytest.approx(8 / 14))
    assert simulate(jobs, [True, True, False]).efficiency == pytest.approx(8 / 12)
