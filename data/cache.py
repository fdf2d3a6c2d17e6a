"""A cache of what was made of graphs, bounded by its memory."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from data.tree import GraphFile

Item = TypeVar("Item")

CACHE_BYTES = 2 << 30  # of graphs that training keeps between steps


def bytes_held(item: object) -> int:
    """Return the memory of all tensors and arrays that `item` reaches, each buffer once.

    What is mapped from a file takes none: the system drops its pages when memory is short.
    """
    import torch

    buffers: dict[int, int] = {}
    seen, left = set[int](), [item]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor) and value.layout == torch.sparse_csr:
            left += [value.crow_indices(), value.col_indices(), value.values()]
        elif isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            buffers[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            owner = value.base.obj if isinstance(value.base, memoryview) else value.base
            if not isinstance(owner, mmap.mmap):
                buffers[value.ctypes.data] = value.nbytes
        elif isinstance(value, list | tuple):
            left += value
        elif hasattr(value, "__dict__") and id(value) not in seen:
            seen.add(id(value))
            left += vars(value).values()
    return sum(buffers.values())


class LRUCache(Generic[Item]):
    """Keeps what `make` made of graphs, up to `max_bytes` by `size`, least recent out first.

    A single larger item is kept alone. What is prefetched is made by a thread of its own, so that
    reading and pruning the next step's graphs goes on beside the present step.
    """

    def __init__(
        self,
        make: Callable[[GraphFile], Item],
        *,
        max_bytes: int = CACHE_BYTES,
        size: Callable[[Item], int] = bytes_held,
    ) -> None:
        self._make, self._size, self._max_bytes = make, size, max_bytes
        self._items: OrderedDict[str, tuple[Item, int]] = OrderedDict()
        self._bytes = 0  # of all items: summing thousands up anew for each would take seconds
        self._coming: dict[str, Future[Item]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def prefetch(self, files: Sequence[GraphFile]) -> None:
        """Begin to make the items of `files`; a fault in one is raised when it is asked for."""
        for file in files:
            key = str(file.path)
            if key not in self._items and key not in self._coming:
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="prefetch")
                self._coming[key] = self._thread.submit(self._make, file)

    def __call__(self, file: GraphFile) -> Item:
        """Return the item of `file`, made now if it is not kept."""
        key = str(file.path)
        if key in self._items:
            self._items.move_to_end(key)
            return self._items[key][0]
        coming = self._coming.pop(key, None)
        item = coming.result() if coming else self._make(file)
        self._items[key] = item, self._size(item)
        self._bytes += self._items[key][1]
        while len(self._items) > 1 and self._bytes > self._max_bytes:
            _, (_, oldest_bytes) = self._items.popitem(last=False)
            self._bytes -= oldest_bytes
        return item
