"""SIGINT and SIGTERM end a command with one line, and with the exit code 130 or 143.

This module is imported before all others, so it imports little.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]
LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Has an entry once the command has printed the line of its end.
_reports = list[str]()


class Stopped(KeyboardInterrupt):
    """A signal has ended the work.

    If KeyboardInterrupt itself leaves an `exec`, CPython ends the process by SIGINT later on, even
    if the exception is caught. A subclass has no such effect.
    """


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End the process before the work begins, or after it."""
    if not _reports:
        with suppress(OSError):
            os.write(2, f"error: {LINES[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def end_quietly(line: str) -> None:
    """Let later signals print no line, because the command prints this line."""
    _reports.append(line)


def handle(handler: Handler | signal.Handlers) -> dict[signal.Signals, Any]:
    """Handle SIGTERM and SIGINT by a function, and return the former handlers.

    A process that ignores SIGINT, for example one that a kernel started, still ignores it. Python
    handles signals in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    former = {number: signal.getsignal(number) for number in LINES}
    handlers = {number: old for number, old in former.items() if old is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, handler)
    return handlers


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Handle SIGTERM and SIGINT by a function while the block runs."""
    before = handle(handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former or signal.SIG_DFL)
