"""A cache of objects that are computed from graphs, with a limit on its memory."""

import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from data.tree import GraphFile

Item = TypeVar("Item")

CACHE_BYTES = 2 << 30


def bytes_held(item: object) -> int:
    """Return the memory of all tensors and arrays that an object reaches, each buffer once.

    Memory-mapped files count as 0, because the system drops their pages when memory is short.
    """
    import torch

    buffers: dict[int, int] = {}
    object_ids, pending = set[int](), [item]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor) and value.layout == torch.sparse_csr:
            pending += [value.crow_indices(), value.col_indices(), value.values()]
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
            pending += value
        elif hasattr(value, "__dict__") and id(value) not in object_ids:
            object_ids.add(id(value))
            pending += vars(value).values()
    return sum(buffers.values())


class LRUCache(Generic[Item]):
    """Stores objects of graphs, and drops the least recently used ones above `max_bytes`.

    A single larger object stays. A separate thread prefetches, so that reading and pruning the next
    step's graphs overlaps with the present step.
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
        # Total of all items. A sum over thousands of items in each call would take seconds.
        self._bytes = 0
        self._coming: dict[str, Future[Item]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def prefetch(self, files: Sequence[GraphFile]) -> None:
        """Begin to compute the objects of files. Errors are raised on request of the object."""
        for file in files:
            key = str(file.path)
            if key not in self._items and key not in self._coming:
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="prefetch")
                self._coming[key] = self._thread.submit(self._make, file)

    def __call__(self, file: GraphFile) -> Item:
        """Return the object of a file. It is computed if it is not in the cache."""
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
