"""Which job comes next."""

from graphlib import CycleError

import pytest

from pipeline.jobs.job import Job
from pipeline.jobs.queue import Queue


def job(name: str, seconds: float = 1.0, *after: str, on_gpu: bool = False) -> Job:
    return Job(name, print, seconds=seconds, on_gpu=on_gpu, after=frozenset(after))


def taken(queue: Queue, *, gpu: bool = False, n_gpus: int = 0) -> str | None:
    """Take a job that ends at once; return its name."""
    found = queue.take(gpu=gpu, n_gpus=n_gpus)
    if found:
        queue.ended(found)
    return found.name if found else None


def test_the_longest_way_goes_first_and_what_waits_goes_after() -> None:
    jobs = [job("short"), job("long", 5), job("start", 1), job("end", 10, "start", "short")]
    queue = Queue(jobs)
    assert [taken(queue) for _ in range(5)] == ["short", "start", "end", "long", None]


def test_a_job_waits_until_what_it_comes_after_has_ended_and_not_begun_alone() -> None:
    queue = Queue([job("a"), job("b", 1, "a")])
    first = queue.take(gpu=False, n_gpus=0)
    assert first and first.name == "a"
    assert queue.take(gpu=False, n_gpus=0) is None
    queue.put_back(first)  # its worker died
    assert [taken(queue), taken(queue)] == ["a", "b"]


def test_what_is_put_back_goes_before_all_others() -> None:
    queue = Queue([job("long", 9), job("short"), job("other")])
    long, short = (queue.take(gpu=False, n_gpus=0) for _ in range(2))
    assert long and short
    queue.put_back(short)
    assert [taken(queue), taken(queue)] == ["short", "other"]


def test_jobs_that_need_a_gpu_go_to_workers_with_one() -> None:
    jobs = [job("trees", 4), job("network", 3, on_gpu=True), job("other", 2, on_gpu=True)]
    queue = Queue(jobs)
    assert taken(queue, gpu=True, n_gpus=1) == "network"
    assert taken(queue, gpu=False, n_gpus=1) == "trees"
    assert taken(queue, gpu=False, n_gpus=1) is None
    assert taken(queue, gpu=True, n_gpus=1) == "other"
    nobody_has_one = Queue(jobs)
    assert taken(nobody_has_one) == "trees" and taken(nobody_has_one) == "network"
    assert taken(Queue(jobs[:1]), gpu=True, n_gpus=1) == "trees"  # rather than nothing


def test_a_job_that_would_end_last_goes_to_a_gpu_too() -> None:
    """It takes longer than what is left for each GPU."""
    jobs = [job("trees", 9), job("network", 12, on_gpu=True), job("other", 4, on_gpu=True)]
    queue = Queue(jobs)
    assert [taken(queue, gpu=True, n_gpus=1) for _ in jobs] == ["network", "trees", "other"]
    for seconds, first in ((15, "network"), (17, "trees")):
        queue = Queue([job("trees", seconds), *jobs[1:]])
        assert taken(queue, gpu=True, n_gpus=1) == first


def test_jobs_that_wait_for_each_other_are_a_fault() -> None:
    with pytest.raises(CycleError):
        Queue([job("a", 1, "b"), job("b", 1, "a")])
