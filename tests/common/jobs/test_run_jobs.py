"""The order of jobs, and the handling of failed and late jobs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.errors import OutOfTime, PipelineError
from common.jobs.run_jobs import (
    Cost,
    Done,
    Event,
    Executor,
    Failed,
    Job,
    Lost,
    Queue,
    run_jobs,
)
from common.progress import time_limit, watched_by


class Scripted(Executor):
    """An executor whose jobs end one at a time, as the test prescribes.

    Args:
        workers: One entry per worker: true if the worker has a GPU.
        fates: The outcomes of the first tries of each job. All later tries succeed.
    """

    def __init__(self, workers: Sequence[bool] = (False,), **fates: list[str]) -> None:
        self.idle, self.running = list(workers), list[tuple[Job, bool]]()
        self.n_with_gpu = sum(workers)
        self.fates, self.begun, self.left = fates, list[tuple[str, bool]](), False

    def __exit__(self, *error: object) -> None:
        self.left = True

    def free(self) -> Sequence[bool]:
        return list(self.idle)

    def n_gpus(self) -> int:
        return self.n_with_gpu

    def begin(self, job: Job, *, gpu: bool) -> None:
        self.begun.append((job.name, gpu))
        self.idle.remove(gpu)
        self.running.append((job, gpu))

    def events(self) -> list[Event]:
        job, gpu = self.running.pop(0)
        self.idle.append(gpu)
        fates = self.fates.get(job.name)
        match fates.pop(0) if fates else "done":
            case "lost":
                return [Lost(job, "was killed")]
            case "failed":
                return [Failed(job, PipelineError("x.npz: bad"))]
            case "again":
                return [Done(job, True, Cost(1.0, 1.0, None))]
            case "late":
                return [Failed(job, OutOfTime("stopped at 3"))]
        return [Done(job, f"{job.name}!", Cost(1.0, 1.0, None))]


def job(name: str, weight: float = 0.0, *after: str, on_gpu: bool = False) -> Job:
    return Job(name, print, weight=weight, on_gpu=on_gpu, after=frozenset(after))


JOBS = [job("a"), job("b", 0, "a"), job("c")]


def names(executor: Scripted) -> list[str]:
    return [name for name, _ in executor.begun]


def test_all_are_done_in_order_and_return_what_they_return() -> None:
    executor = Scripted([False, False])
    done = run_jobs(JOBS, executor)
    assert {name: event.value for name, event in done.items()} == {"a": "a!", "b": "b!", "c": "c!"}
    assert names(executor) == ["a", "c", "b"] and executor.left


def test_a_job_whose_worker_dies_is_done_again_and_named_the_third_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    executor = Scripted(a=["lost"] * 2)
    assert run_jobs(JOBS, executor).keys() == {"a", "b", "c"}
    assert names(executor) == ["a"] * 3 + ["b", "c"]
    assert caplog.messages == ["a: its worker was killed; it resumes in another worker"] * 2
    executor = Scripted(a=["lost"] * 3)
    named = r"a: its worker was killed, 3 times; the same command resumes"
    with pytest.raises(PipelineError, match=named):
        run_jobs(JOBS, executor)
    assert names(executor) == ["a"] * 3 + ["c"]


def test_losses_of_a_job_that_repeats_are_counted_from_its_last_call_that_ended() -> None:
    lane, a_call = replace(job("a"), repeats=True), ["lost", "lost", "lost", "again"]
    executor = Scripted(a=3 * a_call)
    assert run_jobs([lane, *JOBS[1:]], executor).keys() == {"a", "b", "c"}
    assert names(executor) == ["a"] * 13 + ["b", "c"]
    executor = Scripted(a=[*a_call, *["lost"] * 4])
    with pytest.raises(PipelineError, match="a: its worker was killed, 4 times"):
        run_jobs([lane], executor)


def test_a_job_that_fails_keeps_only_its_followers_from_being_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    executor = Scripted(a=["failed"])
    with pytest.raises(PipelineError, match=r"^x\.npz: bad$"):
        run_jobs(JOBS, executor)
    assert names(executor) == ["a", "c"]
    assert caplog.messages == ["failed: a: x.npz: bad"]


def test_out_of_time_nothing_is_begun_and_what_ends_late_says_so() -> None:
    executor = Scripted()
    with time_limit(0.0), pytest.raises(OutOfTime, match="out of time with 0 of 3 jobs"):
        run_jobs(JOBS, executor)
    assert executor.begun == []
    executor = Scripted(c=["late"])
    with pytest.raises(OutOfTime, match="stopped at 3"):
        run_jobs(JOBS, executor)
    assert names(executor) == ["a", "b", "c"]


def test_progress_of_all_jobs_counts_their_weights() -> None:
    told = list[tuple[str, int, int]]()
    jobs = [job("a", 99), job("b", 19), job("c", 29)]
    with watched_by(lambda *step: told.append(step)):
        run_jobs(jobs, Scripted())
    every = [step for step in told if step[0].startswith("all jobs")]
    counts = ["all jobs", "all jobs: 1 of 3", "all jobs: 2 of 3", "all jobs"]
    assert every == [(what, n, 150) for what, n in zip(counts, (0, 100, 130, 150), strict=True)]
    assert [step for step in told if step not in every] == [(n, 1, 1) for n in "acb"]


def taken(queue: Queue, *, gpu: bool = False, n_gpus: int = 0) -> str | None:
    found = queue.take(gpu=gpu, n_gpus=n_gpus)
    if found:
        queue.release_after(found)
    return found.name if found else None


def test_the_heaviest_chain_goes_first_and_waiting_jobs_go_after() -> None:
    jobs = [job("short", 1), job("long", 5), job("start", 1), job("end", 10, "start", "short")]
    queue = Queue(jobs)
    assert [taken(queue) for _ in range(5)] == ["short", "start", "end", "long", None]


def test_a_job_waits_until_what_it_comes_after_has_ended_and_not_begun_alone() -> None:
    queue = Queue([job("a", 1), job("b", 1, "a"), job("other", 9)])
    other, first = (queue.take(gpu=False, n_gpus=0) for _ in range(2))
    assert other and first and (other.name, first.name) == ("other", "a")
    assert queue.take(gpu=False, n_gpus=0) is None
    queue.put_back(other)
    queue.put_back(first)  # its worker died: it goes before all others
    assert [taken(queue), taken(queue), taken(queue)] == ["a", "other", "b"]


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


def test_workers_without_a_gpu_are_served_first() -> None:
    executor = Scripted([True, False])
    run_jobs([job("trees", 9), job("a", 4, on_gpu=True), job("b", 3, on_gpu=True)], executor)
    assert executor.begun == [("trees", False), ("a", True), ("b", True)]
