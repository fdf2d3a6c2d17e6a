"""Progress, log lines and the time limit of a command.

The work calls `log.info`, `progress` and `out_of_time` at any depth. The command decides with
`watched_by` and `time_limit` how to handle them. A thread or process that the work starts has no
watcher and no limit until it sets them itself.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
# A function of the name of the work, the number of finished steps, and the number of all steps.
Watcher = Callable[[str, int, int], None]

log = logging.getLogger("fast_or_slow")

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_job: ContextVar[str] = ContextVar("teller", default="")
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def progress(work: str, n_done: int, n_steps: int) -> None:
    """Report to the watcher, if any, how many steps are done. 0 means that the work begins."""
    watcher = _watcher.get()
    if watcher:
        watcher(work, n_done, n_steps)


def each(work: str, items: Sequence[T]) -> Iterator[T]:
    """Yield items, and report how many of them are done."""
    for n_done, item in enumerate(items):
        progress(work, n_done, len(items))
        yield item
    progress(work, len(items), len(items))


@contextmanager
def in_one_step(work: str) -> Iterator[None]:
    """Report the block as work of one step."""
    progress(work, 0, 1)
    yield
    progress(work, 1, 1)


class _LogHandler(logging.Handler):
    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())


@contextmanager
def log_lines_to(report: Callable[[str], object], level: int = logging.INFO) -> Iterator[None]:
    """Call a function with each line that any thread logs while the block runs."""
    handler = _LogHandler(report)
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def _with_value(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def watched_by(watcher: Watcher | None) -> AbstractContextManager[None]:
    """Report the progress of the block to a watcher; None ignores it."""
    return _with_value(_watcher, watcher)


def reporting_as(job: str) -> AbstractContextManager[None]:
    """Report progress under the name of a parallel job, which ends with a step of that name."""
    return _with_value(_job, job)


def reporter_name(work: str) -> str:
    """Return the name of the job that reports the present progress; `work` if no job is set."""
    return _job.get() or work


def time_limit(max_minutes: float | None) -> AbstractContextManager[None]:
    """Limit the minutes of the work in this block. An earlier end of an outer block stays."""
    new = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    ends = [end for end in (_deadline.get(), new) if end is not None]
    return _with_value(_deadline, min(ends, default=None))


def end_now() -> None:
    """End the time of the work that runs now. A signal handler calls this."""
    _deadline.set(0.0)


def out_of_time() -> bool:
    """Return whether the time of the work is over."""
    return seconds_left() <= 0


def seconds_left() -> float:
    """Return how many seconds the work has left, at least 0; inf without a limit."""
    deadline = _deadline.get()
    return float("inf") if deadline is None else max(0.0, deadline - time.monotonic())
