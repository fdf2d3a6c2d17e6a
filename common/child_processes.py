"""Child processes that neither outlive their parent nor answer a terminal's Ctrl-C themselves."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process


def end_with_parent() -> None:
    """Watch the process that started this one: were it killed, this one would go on or wait."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back from this thread while the block runs; they come after it.

    A process that is started in the block never gets SIGINT: a terminal sends Ctrl-C to parent and
    children alike, and the parent alone shall answer it.
    """
    held = list[int]()
    # The mask is for what is started; other threads of this process still take the signal, and its
    # handler runs in the main thread.
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    handlers = {one: signal.signal(one, lambda number, _: held.append(number)) for one in numbers}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one, handler in handlers.items():
            signal.signal(one, handler or signal.SIG_DFL)
        for number in held:
            signal.raise_signal(number)
