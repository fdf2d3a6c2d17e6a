"""What a long job tells whoever watches it, and when it must stop: one of each for a command.

The work calls `log.info`, `progress` and `out_of_time` wherever it is; whoever starts it decides at
the edge what becomes of that, with `watched_by` and `time_limit`. A thread or process that is
started meanwhile has neither, unless it is given them anew.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

# Told what is going on, how many steps are done, and how many there are: (what, done, total).
T = TypeVar("T")
Watcher = Callable[[str, int, int], None]

log = logging.getLogger("fast_or_slow")

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_teller: ContextVar[str] = ContextVar("teller", default="")
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


def progress(what: str, done: int, total: int) -> None:
    """Tell whoever watches that `done` of `total` steps are done; with none done, they begin."""
    watcher = _watcher.get()
    if watcher:
        watcher(what, done, total)


def each(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield items, and tell whoever watches how many of them are done."""
    for done, item in enumerate(items):
        progress(what, done, len(items))
        yield item
    progress(what, len(items), len(items))


@contextmanager
def in_one_step(what: str) -> Iterator[None]:
    """Tell whoever watches that the block is work without steps of its own."""
    progress(what, 0, 1)
    yield
    progress(what, 1, 1)


class _Remarks(logging.Handler):
    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def heard_by(tell: Callable[[str], object], level: int = logging.INFO) -> Iterator[None]:
    """Let `tell` be called with each line that any thread logs while the block runs."""
    handler = _Remarks(tell)
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def _held(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def watched_by(watcher: Watcher | None) -> AbstractContextManager[None]:
    """Let `watcher` be told of the progress of the work in this block."""
    return _held(_watcher, watcher)


def told_by(teller: str) -> AbstractContextManager[None]:
    """Tell of progress in this block in the name of one of several that work at once.

    It goes on from step to step; it is done when a step of its own name is.
    """
    return _held(_teller, teller)


def teller_or(what: str) -> str:
    """Return who tells of the progress that a watcher is told now; `what` if it is one alone."""
    return _teller.get() or what


def time_limit(max_minutes: float | None) -> AbstractContextManager[None]:
    """Give the work in this block so many minutes, or as long as it takes.

    A limit outside stays in force where it ends earlier.
    """
    own = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    known = [end for end in (_deadline.get(), own) if end is not None]
    return _held(_deadline, min(known, default=None))


def end_now() -> None:
    """Let the time of the work that goes on here be over; to be called by a signal's handler."""
    _deadline.set(0.0)


def out_of_time() -> bool:
    """Tell whether the time of the work is over."""
    return seconds_left() <= 0


def seconds_left() -> float:
    """Return how many seconds the work has left; inf without a limit, at least 0."""
    deadline = _deadline.get()
    return float("inf") if deadline is None else max(0.0, deadline - time.monotonic())
