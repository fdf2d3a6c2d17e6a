"""Make the next items of an iterator in a thread while the last one is worked on."""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
MAX_WAITING = 2
LOOK_UP_S = 0.1


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _End:
    """Nothing follows."""


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of an iterable, up to two of which are made before they are asked for.

    It pays where making an item leaves Python's lock, as inflating does. What the iterable raises
    is raised here; if this iterator is closed, the iterable is not asked for more.
    """
    waiting: queue.Queue[Item | _Failed | _End] = queue.Queue(MAX_WAITING)
    stopped = threading.Event()

    def put(item: Item | _Failed | _End) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                waiting.put(item, timeout=LOOK_UP_S)
                return

    def make() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
        except BaseException as error:  # handed to the thread that asked
            put(_Failed(error))
        else:
            put(_End())

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            if isinstance(item, _Failed):
                raise item.error
            yield item
    finally:
        stopped.set()
        thread.join()
