"""A job done by several processes of this machine."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context

from common.child_processes import end_with_parent
from common.errors import OutOfTime, PipelineError
from common.progress import log, seconds_left, time_limit

STOP_S = 20  # a worker that was told to stop has so long to note that, then is killed


def on_processes(n: int, job: Callable[[int], object]) -> None:
    """Call job(0) … job(n - 1), each in a process of its own, and wait for all.

    What one of them is killed of, or fails of, is logged: the caller looks for what is left to do.

    Raises:
        PipelineError: all of them were killed.
    """
    context, minutes = get_context("spawn"), seconds_left() / 60
    workers = [context.Process(target=_work, args=(job, part, minutes)) for part in range(n)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
        for worker in workers:
            if worker.pid:
                worker.join(STOP_S)
                worker.kill()
    killed = [worker for worker in workers if (worker.exitcode or 0) < 0]
    for worker in killed:
        name = signal.Signals(-(worker.exitcode or 0)).name
        log.info(f"worker {worker.pid} was killed by {name}")
    if len(killed) == n:
        raise PipelineError(f"all {n} workers were killed; the same command goes on")


def _work(job: Callable[[int], object], part: int, minutes: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent as well
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent()
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    try:
        with time_limit(minutes):
            job(part)
    except (KeyboardInterrupt, OutOfTime):
        sys.exit(1)
    except Exception as error:
        line = " ".join(str(error).split())
        name = "" if isinstance(error, PipelineError) else f"{type(error).__name__}: "
        log.info(f"worker {os.getpid()}: {name}{line}")
        sys.exit(1)
