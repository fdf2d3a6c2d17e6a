"""Executors on this machine: this process, or a pool of processes."""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, get_start_method, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from common.errors import OutOfTime, PipelineError
from common.jobs.run_jobs import Done, Event, Executor, Failed, Job, Lost, do
from common.progress import (
    Watcher,
    end_now,
    log,
    log_lines_to,
    out_of_time,
    progress,
    reporting_as,
    seconds_left,
    time_limit,
    watched_by,
)
from common.signals import handled_by

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

POLL_S, STOP_S = 1.0, 10.0
PROGRESS_EVERY_S = 0.2
VISIBLE = "CUDA_VISIBLE_DEVICES"
THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
IMPORTED_ONCE = ("polars", "lightgbm", "sklearn.linear_model", "torch", "torch._dynamo")


class InlineExecutor(Executor):
    """Run jobs one after the other in this process."""

    def __init__(self, *, gpu: bool = False) -> None:
        self._gpu = gpu
        self._events: list[Event] = []

    def free(self) -> Sequence[bool]:
        return [self._gpu]

    def n_gpus(self) -> int:
        return int(self._gpu)

    def begin(self, job: Job, *, gpu: bool) -> None:
        try:
            self._events.append(Done(job, *do(job)))
        except Exception as error:
            self._events.append(Failed(job, error))

    def events(self) -> Sequence[Event]:
        events, self._events = self._events, []
        return events


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    job: Job | None = None


class Processes(Executor):
    """A pool of processes, each with one job at a time.

    A process starts when there is a job for it, and a new one replaces a dead one. At the end of
    the block, workers get SIGTERM, write checkpoints, and end within seconds.

    Args:
        gpus: Number of the GPU that each process has for itself; None without a GPU.
    """

    def __init__(self, gpus: Sequence[str | None], *, threads: int = 1) -> None:
        self._gpus, self._threads = gpus, threads
        self._workers: dict[int, _Worker] = {}

    def __enter__(self) -> Self:
        import_once(self._threads)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            busy = [worker for worker in self._workers.values() if worker.job]
            for worker in busy:
                worker.process.terminate()
            until = monotonic() + STOP_S
            while any(worker.job for worker in busy) and monotonic() < until:
                self.events()
        finally:
            for worker in self._workers.values():
                worker.process.kill()  # an idle one has nothing to lose
                worker.process.join()
                worker.connection.close()
            self._workers.clear()

    def _idle(self) -> list[int]:
        busy = {number for number, worker in self._workers.items() if worker.job}
        return [number for number in range(len(self._gpus)) if number not in busy]

    def free(self) -> Sequence[bool]:
        return [self._gpus[number] is not None for number in self._idle()]

    def n_gpus(self) -> int:
        return sum(gpu is not None for gpu in self._gpus)

    def begin(self, job: Job, *, gpu: bool) -> None:
        idle = [number for number in self._idle() if (self._gpus[number] is not None) == gpu]
        number = next((number for number in idle if number in self._workers), idle[0])
        with defer_interrupts():
            if number not in self._workers:
                self._workers[number] = _start_worker(self._gpus[number], self._threads)
            worker = self._workers[number]
            worker.job = job
            # The worker has died. `events` will notice it.
            with suppress(OSError):
                worker.connection.send((job, seconds_left()))

    def events(self) -> Sequence[Event]:
        busy = {w.connection: (n, w) for n, w in self._workers.items() if w.job}
        events = []
        for connection in wait(list(busy), POLL_S):
            assert isinstance(connection, Connection)
            number, worker = busy[connection]
            # A message that is read only in part would damage the next one.
            with defer_interrupts():
                event = _receive(worker)
            if isinstance(event, Lost):
                # A worker that still lives ends when its connection closes.
                worker.connection.close()
                del self._workers[number]
            if event:
                worker.job = None
                events.append(event)
        return events


def worker_context() -> "ForkServerContext | SpawnContext":
    """Return how workers start: from a fork server on Linux, by spawn elsewhere or if it is set.

    On macOS a process may not be forked once torch is loaded.
    """
    if sys.platform != "linux" or get_start_method(allow_none=True) == "spawn":
        return get_context("spawn")
    return get_context("forkserver")


def import_once(threads: int) -> None:
    """Start slow imports in the process that workers are forked from."""
    if worker_context().get_start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(list(IMPORTED_ONCE))
    atexit.register(_end_fork_server)
    unset = [name for name in THREAD_POOLS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, str(threads)))
    try:
        with defer_interrupts():
            forkserver.ensure_running()
    finally:
        for name in unset:
            del os.environ[name]


def _end_fork_server() -> None:
    """End the fork server together with this process. It would first finish its imports."""
    from multiprocessing import forkserver

    server = vars(forkserver)["_forkserver"]
    if pid := server._forkserver_pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        server._stop()


def _start_worker(gpu: str | None, threads: int) -> _Worker:
    context = worker_context()
    parent_end, worker_end = context.Pipe()
    process = context.Process(target=_work, args=(worker_end, gpu, threads))
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        fault = "no worker can be started: the process that starts them was ended (out of memory?)"
        raise PipelineError(f"{fault}; the same command resumes") from error
    worker_end.close()
    return _Worker(process, parent_end)


def _receive(worker: _Worker) -> Event | None:
    """Receive one message of a worker, and return the event that ends its job, if any."""
    job = worker.job
    assert job is not None
    try:
        kind, *content = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode or 0
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Lost(job, died + " (out of memory?)" * (code == -signal.SIGKILL))
    if kind == "progress":
        with reporting_as(job.name):
            progress(*content)
    elif kind == "log":
        log.info(*content)
    else:
        return event_of(job, kind, *content)
    return None


def _work(connection: Connection, gpu: str | None, threads: int) -> None:
    end_with_parent()
    # On Linux, this process is the first one to end if memory runs out.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[VISIBLE] = gpu or ""  # read when torch starts CUDA
    for name in THREAD_POOLS:
        os.environ.setdefault(name, str(threads))
    # Threads of a job send messages as well.
    sending = threading.Lock()

    def send(*message: Any) -> None:
        with sending:
            connection.send(message)

    with suppress(EOFError, OSError), log_lines_to(lambda line: send("log", line)):
        while True:
            job, seconds = connection.recv()
            signal.signal(signal.SIGTERM, lambda *_: end_now())
            watcher = throttle(lambda *step: send("progress", *step))
            with watched_by(watcher), time_limit(seconds / 60):
                send(*outcome(job))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def outcome(job: Job) -> tuple[Any, ...]:
    """Do a job in a worker, and return ("done", value, cost) or ("failed", error)."""
    try:
        return ("done", *do(job))
    except Exception as error:
        is_known_here = isinstance(error, PipelineError | OutOfTime | MemoryError | OSError)
        copy = error if is_known_here else RuntimeError(f"{type(error).__name__}: {error}")
        copy.add_note("".join(traceback.format_exception(error)))
        return ("failed", copy)


def event_of(job: Job, kind: str, *content: Any) -> Event:
    """Turn an `outcome` into an event. A worker that was stopped early counts as lost."""
    if kind == "done":
        return Done(job, *content)
    if isinstance(content[0], OutOfTime) and not out_of_time():
        return Lost(job, "was stopped")
    return Failed(job, content[0])


def throttle(watcher: Watcher) -> Watcher:
    """Pass on each first and last step, and other steps at most five times per second."""
    reported_at = 0.0

    def watch(work: str, n_done: int, n_steps: int) -> None:
        nonlocal reported_at
        if not 0 < n_done < n_steps or monotonic() - reported_at >= PROGRESS_EVERY_S:
            reported_at = monotonic()
            watcher(work, n_done, n_steps)

    return watch


def end_with_parent() -> None:
    """End this process as soon as its parent ends, for example because the parent was killed."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, in which a process may start.

    The new process never gets SIGINT: a terminal sends Ctrl-C to parent and children, and only the
    parent shall handle it.
    """
    signals = list[int]()
    # A later start would remove the signal mask.
    resource_tracker.ensure_running()
    # Other threads of this process still receive the signal, and its handler runs in the main one.
    try:
        with handled_by(lambda number, _: signals.append(number)):
            # New processes inherit the mask.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        for number in signals:
            signal.raise_signal(number)
