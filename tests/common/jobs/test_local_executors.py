"""Jobs in real processes: crashes, errors, signals and progress messages."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

from common.errors import OutOfTime, UsageError
from common.jobs import local_executors
from common.jobs.local_executors import InlineExecutor, Processes
from common.jobs.run_jobs import Done, Job, run_jobs
from common.progress import reporter_name, time_limit, watched_by
from common.settings import ROOT
from tests.common.jobs import work
from tests.drills.processes import descendants, wait_until_gone
from tests.support.command_line import python_in

KILL, TERM = signal.SIGKILL, signal.SIGTERM
MANY = 60


@pytest.fixture(autouse=True)
def light_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import no large library, and set their numbers of threads themselves."""
    monkeypatch.setattr(local_executors, "IMPORTED_ONCE", ())
    for name in local_executors.THREAD_POOLS:
        monkeypatch.delenv(name, raising=False)


def jobs_of(names: str, function: object = work.where, **more: object) -> list[Job]:
    return [Job(name, function, **more) for name in names]  # type: ignore[arg-type]


def done_by(jobs: Sequence[Job], *gpus: str | None) -> dict[str, Done]:
    return run_jobs(jobs, Processes(gpus, threads=3))


def test_each_worker_sees_its_gpu_alone_and_jobs_that_need_one_go_there() -> None:
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # an earlier test's has its threads
    jobs = [*jobs_of("ab", on_gpu=True), *jobs_of("cd")]
    told = {name: done.value for name, done in done_by(jobs, "3", "5", None).items()}
    assert {told[name][1] for name in "ab"} == {"3", "5"}
    assert told["c"][1] == "" and {threads for _, _, threads in told.values()} == {"3"}
    assert os.getpid() not in {pid for pid, _, _ in told.values()}
    assert {pid for pid, *_ in told.values()} & set(descendants(os.getpid())) == set()


def test_messages_and_progress_of_workers_arrive_in_this_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    told = Counter[tuple[str, str]]()
    with watched_by(lambda what, done, total: told.update([(reporter_name(what), what)])):
        done_by([Job(name, work.talk, (name,)) for name in "ab"], None, None)
    assert sorted(caplog.messages) == sorted(f"{n} says {k}" for n in "ab" for k in range(30))
    assert told["a", "talk a"] and told["b", "talk b"]
    assert told["a", "a"] == told["b", "b"] == 1  # that nobody does it any more


@pytest.mark.parametrize(
    ("number", "said"), [(KILL, "killed by SIGKILL (out of memory?)"), (TERM, "stopped")]
)
def test_a_job_resumes_elsewhere_when_its_worker_is_killed_or_stopped(
    number: signal.Signals, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    jobs = [Job("struck", work.struck, (tmp_path, [number, number])), *jobs_of("abc")]
    done = done_by(jobs, None, None)
    assert done["struck"].value == 2 and len(done) == 4
    assert caplog.messages == [f"struck: its worker was {said}; it resumes in another worker"] * 2


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="needs Linux's /proc")
def test_memory_that_runs_out_ends_a_worker_and_not_the_command() -> None:
    done = done_by(jobs_of("ab", work.oom_score), None, None)
    assert [done[name].value for name in "ab"] == [1000, 1000]
    assert work.oom_score() < 1000


def test_the_error_of_a_job_is_raised_and_other_jobs_finish() -> None:
    kinds = {"ours": UsageError("--top: 0; odd"), "other": RuntimeError("StrangeError: odd")}
    for how, want in kinds.items():
        with pytest.raises(type(want)) as error:
            done_by([Job("bad", work.fail, (how,)), *jobs_of("ab")], None, None)
        assert (type(error.value), str(error.value)) == (type(want), str(want))
        assert "in fail\n" in error.value.__notes__[0]  # the traceback, for --debug


def test_out_of_time_jobs_stop_at_a_checkpoint_and_resume(tmp_path: Path) -> None:
    jobs = [Job(name, work.count, (tmp_path / name, MANY)) for name in "ab"]
    with time_limit(0.3 / 60), pytest.raises(OutOfTime):
        done_by(jobs, None, None)
    for executor in (Processes([None]), InlineExecutor()):
        run_jobs(jobs, executor)
        assert [(tmp_path / name).read_text() for name in "ab"] == [str(MANY)] * 2


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, TERM, KILL], ids=lambda number: number.name)
def test_workers_end_with_the_command_and_nothing_is_done_twice(
    number: signal.Signals, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.common.jobs.work", str(tmp_path)]
    steps = 3000
    with subprocess.Popen(
        [*words, str(steps)], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not all((tmp_path / name).exists() for name in "ab"):
            assert process.poll() is None
            time.sleep(0.01)
        below = descendants(process.pid)
        assert len(below) >= 2
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-1:]
    wait_until_gone(below)
    codes = {signal.SIGINT: (130, "interrupted"), TERM: (143, "terminated"), KILL: (-KILL, "")}
    code, said = codes[number]
    assert process.returncode == code
    assert all(line.startswith(f"error: {said}; the same command resumes") for line in last if said)
    reached = {name: int((tmp_path / name).read_text() or 0) for name in "ab"}
    assert max(reached.values()) < steps and not (tmp_path / "c").exists()
    subprocess.run([*words, str(max(reached.values()) + 1)], cwd=ROOT, check=True)
    assert (tmp_path / "c").read_text() == "1"
    assert all(len((tmp_path / f"{n}.begun").read_text().split()) == 2 for n in "ab")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server")
def test_the_fork_server_ends_with_its_command_during_its_imports() -> None:
    lines = (
        "from common.jobs.local_executors import import_once",
        "from multiprocessing import forkserver",
        "import_once(1)",
        "print(forkserver._forkserver._forkserver_pid)",
    )
    pid = python_in(ROOT, "-c", "\n".join(lines)).strip()
    assert not Path(f"/proc/{pid}").exists()
