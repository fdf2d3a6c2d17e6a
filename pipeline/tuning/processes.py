"""Several workers of one study, each a process of its own on this machine."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, cast

from common.errors import PipelineError
from models.training.jobs import Progress
from pipeline.tuning.question import Question
from pipeline.tuning.search import Budget, work_on
from pipeline.tuning.storage.storage import Storage, open_storage, quiet_optuna

SAID, PROGRESS, FAILED = "said", "progress", "failed"
STOP_S = 20  # a worker that was told to stop has so long to note that, then is killed


def work_on_processes(
    question: Question,
    storage: Storage,
    budget: Budget,
    *,
    workers: int,
    say: Callable[[str], None],
    progress: Progress | None,
) -> None:
    """Start workers, pass on what they say, and wait for all; on Ctrl-C, stop them.

    A worker that is killed loses no trial: another one tries it again, in this call or a later one.

    Raises:
        PipelineError: as the first worker that failed, once all have ended; or all were killed.
    """
    context = get_context("spawn")
    running: dict[Connection, SpawnProcess] = {}
    failures: list[str] = []
    killed = 0
    try:
        for _ in range(workers):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(there, question, storage, budget))
            process.start()
            there.close()  # so that `here` ends with the process
            running[here] = process
        while running:
            for ready in wait(list(running)):
                here = cast("Connection", ready)
                try:
                    kind, content = here.recv()
                except (EOFError, OSError):
                    process = running.pop(here)
                    killed += _is_killed(process, say)
                    continue
                _pass_on(kind, content, say=say, progress=progress, failures=failures)
    finally:
        _stop(list(running.values()))
    if failures:
        raise PipelineError(failures[0])
    if killed == workers:
        raise PipelineError(f"all {workers} workers were killed; the same command goes on")


def _pass_on(
    kind: str,
    content: Any,
    *,
    say: Callable[[str], None],
    progress: Progress | None,
    failures: list[str],
) -> None:
    if kind == SAID:
        say(content)
    elif kind == FAILED:
        failures.append(content)
    elif progress:
        progress(*content)


def _is_killed(process: SpawnProcess, say: Callable[[str], None]) -> bool:
    """Wait for a worker that has hung up; tell whether something killed it."""
    process.join()
    code = process.exitcode or 0
    if code < 0:
        say(f"worker {process.pid} was killed by signal {-code} ({signal.Signals(-code).name})")
    return code < 0


def _stop(processes: list[SpawnProcess]) -> None:
    """Let workers note that their trials did not come to an end, and wait for them."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(STOP_S)
        process.kill()
        process.join()


def _work(there: Connection, question: Question, storage: Storage, budget: Budget) -> None:
    """Be a worker in a process of its own; the parent hears of everything through `there`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent as well
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def told(what: str, done: int, total: int) -> None:
        there.send((PROGRESS, (what, done, total)))

    try:
        with quiet_optuna(), open_storage(storage) as shared:
            say = partial(_say, there)
            work_on(question, shared, budget, say=say, progress=told)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
    except PipelineError as error:
        there.send((FAILED, str(error)))
    except Exception as error:
        there.send((FAILED, f"worker {os.getpid()}: {type(error).__name__}: {error}"))


def _say(there: Connection, line: str) -> None:
    there.send((SAID, line))


def _end_with_parent() -> None:
    """Stop this worker when the parent is gone, however it went."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
