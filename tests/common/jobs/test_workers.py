"""The number of workers for the available cores, memory and GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.jobs import workers
from common.jobs.local_executors import InlineExecutor, Processes
from common.jobs.run_jobs import WORKER_BYTES, Job
from common.jobs.workers import Workers, default_workers


def jobs_of(n: int, weight: float = 100.0, *, threads: int = 1) -> list[Job]:
    return [Job(str(k), print, (), weight, threads) for k in range(n)]


@pytest.mark.parametrize(
    ("has", "gpus", "threads", "want"),  # has: cores, and workers whom the memory suffices
    [
        ((2, 12), 0, 1, 2),
        ((96, 200), 0, 1, 96),
        ((96, 200), 0, 4, 24),
        ((96, 10), 0, 1, 10),
        # The memory of a worker does not depend on its threads.
        ((8, 4), 0, 4, 2),
        ((1, 0), 0, 1, 1),
        ((2, 12), 0, 4, 1),
        ((4, 15), 2, 1, 4),  # Kaggle's two T4
        # One worker is left for jobs without a GPU.
        ((4, 15), 2, 4, 3),
        ((64, 6), 4, 1, 6),
    ],
)
def test_all_cores_and_gpus_are_taken_as_far_as_the_memory_suffices(
    has: tuple[int, int], gpus: int, threads: int, want: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "granted", lambda: (has[0], has[1] * WORKER_BYTES))
    assert default_workers(jobs_of(99, threads=threads), gpus) == want


def test_jobs_that_need_more_memory_get_fewer_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "granted", lambda: (8, 12 << 30))
    jobs = [replace(job, n_bytes=(3 if job.name == "0" else 1) << 30) for job in jobs_of(9)]
    assert default_workers(jobs) == 4 and default_workers(jobs[1:]) == 8


def test_short_jobs_run_in_this_process_unless_workers_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "granted", lambda: (4, 100 * WORKER_BYTES))
    executors = {
        (n, weight): type(Workers(n)._executor(jobs_of(3, weight), tmp_path))
        for n in (None, 1, 2)
        for weight in (1.0, 100.0)
    }
    here, pool = InlineExecutor, Processes
    assert executors == {
        **{(None, 1.0): here, (None, 100.0): pool},
        **{(1, 1.0): here, (1, 100.0): here},
        **{(2, 1.0): pool, (2, 100.0): pool},
    }
    assert isinstance(Workers(2)._executor(jobs_of(1), tmp_path), InlineExecutor)
    assert Workers(None).are_inline(jobs_of(3, 1.0)) and not Workers(None).are_inline(jobs_of(3))


def test_libraries_load_ahead_of_long_jobs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[int]()
    monkeypatch.setattr(workers, "import_once", loaded.append)
    monkeypatch.setattr(workers, "granted", lambda: (2, WORKER_BYTES))
    Workers(1).prepare(800, threads=1)
    Workers(2).prepare(12, threads=1)
    assert not loaded
    Workers(None).prepare(800, threads=1)
    Workers(2).prepare(800, threads=3)
    assert loaded == [1, 3]
