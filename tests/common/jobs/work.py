"""Functions that the jobs of tests run in worker processes."""

import os
import signal
import threading
import time
from pathlib import Path

import typer

from common.errors import OutOfTime, UsageError
from common.files import write_text
from common.jobs import local_executors
from common.jobs.local_executors import Processes
from common.jobs.run_jobs import Job, run_jobs
from common.progress import log, out_of_time, progress
from pipeline.cli.console import command

STEP_S = 0.01


def where() -> tuple[int, str | None, str | None]:
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS")


def talk(name: str) -> None:
    saying = [threading.Thread(target=log.info, args=(f"{name} says {n}",)) for n in range(30)]
    for number, thread in enumerate(saying):
        progress(f"talk {name}", number, 2 * len(saying))
        thread.start()
    for thread in saying:
        thread.join()


def struck(folder: Path, numbers: list[signal.Signals]) -> int:
    """Get a signal in each of the first tries; return how many there were."""
    tries = len(list(folder.glob("try-*")))
    (folder / f"try-{tries}").touch()
    if tries < len(numbers):
        os.kill(os.getpid(), numbers[tries])
        while not out_of_time():
            time.sleep(STEP_S)
        raise OutOfTime("stopped")
    return tries


def oom_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def handed_back(value: object) -> object:
    return value


def fail(how: str) -> None:
    class StrangeError(Exception): ...

    raise UsageError("--top: 0; odd") if how == "ours" else StrangeError("odd")


def count(path: Path, steps: int) -> None:
    """Count up to `steps` in a file, from its current value, and log each start to `.begun`."""
    with path.with_suffix(".begun").open("a") as begun:
        begun.write(f"{os.getpid()}\n")
    start = int(path.read_text()) if path.exists() else 0
    for number in range(start, steps):
        if out_of_time():
            raise OutOfTime(f"{path}: {number} of {steps}")
        time.sleep(STEP_S)
        write_text(path, str(number + 1))


@command
def main(folder: Path, steps: int, resume: bool = True) -> None:
    local_executors.IMPORTED_ONCE = ()
    jobs = [Job(name, count, (folder / name, steps), 1.0) for name in ("a", "b")]
    jobs.append(Job("c", count, (folder / "c", 1), after=frozenset({"a", "b"})))
    run_jobs(jobs, Processes([None, None]))


if __name__ == "__main__":
    typer.run(main)
