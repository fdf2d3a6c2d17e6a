"""Which graphs of a split a model can learn from, and a bounded cache of what it reads of them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from data.graphs.distinct import distinct_configs, group_means
from data.graphs.graph import Graph
from data.read import read_graph
from data.tree import GraphFile

Item = TypeVar("Item")

CACHE_BYTES = 2 << 30  # of graphs that training keeps between steps


@dataclass(frozen=True)
class Unusable:
    """A train graph that teaches nothing, and why."""

    file: GraphFile
    reason: str


def why_unusable(graph: Graph) -> str | None:
    """Say why no order of configs can be learned from `graph`, or None if one can."""
    if not graph.is_labelled:
        return "runtimes are withheld"
    first, group = distinct_configs(graph)
    if len(first) < 2:
        return f"only one distinct config, measured {graph.n_configs} times"
    mean_ns = group_means(graph.runtime_ns, group)
    if mean_ns.min() == mean_ns.max():
        return "all configs have the same runtime"
    return None


def split_usable(files: Sequence[GraphFile]) -> tuple[list[GraphFile], list[Unusable]]:
    """Part the graphs that a ranker can learn from and those it cannot.

    Reads each file once, one in memory at a time.

    Raises:
        PipelineError: a file is damaged.
    """
    usable, unusable = [], []
    for file in files:
        reason = why_unusable(read_graph(file))
        if reason is None:
            usable.append(file)
        else:
            unusable.append(Unusable(file, reason))
    return usable, unusable


class RecentlyUsed(Generic[Item]):
    """Keeps what was made of graphs in memory up to a number of bytes, least recent out first.

    What is looked ahead for is made by a thread of its own, so that reading and pruning the next
    step's graphs goes on beside the present step.

    Args:
        make: builds the item of a file.
        size: an item's bytes.
        max_bytes: how much to keep; a single larger item is kept alone.
    """

    def __init__(
        self, make: Callable[[GraphFile], Item], size: Callable[[Item], int], *, max_bytes: int
    ) -> None:
        self._make, self._size, self._max_bytes = make, size, max_bytes
        self._items: OrderedDict[str, Item] = OrderedDict()
        self._bytes = 0  # of all items: summing thousands up anew for each would take seconds
        self._coming: dict[str, Future[Item]] = {}
        self._thread: ThreadPoolExecutor | None = None

    def look_ahead(self, files: Sequence[GraphFile]) -> None:
        """Begin to make the items of `files` that are not kept; they add to what is in memory.

        A fault in making one is raised when it is asked for.
        """
        for file in files:
            key = str(file.path)
            if key in self._items or key in self._coming:
                continue
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="look-ahead")
            self._coming[key] = self._thread.submit(self._make, file)

    def __call__(self, file: GraphFile) -> Item:
        """Return the item of `file`, made now if it is not kept."""
        key = str(file.path)
        if key in self._items:
            self._items.move_to_end(key)
            return self._items[key]
        coming = self._coming.pop(key, None)
        item = coming.result() if coming else self._make(file)
        self._items[key] = item
        self._bytes += self._size(item)
        while len(self._items) > 1 and self._bytes > self._max_bytes:
            _, oldest = self._items.popitem(last=False)
            self._bytes -= self._size(oldest)
        return item
