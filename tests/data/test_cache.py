"""The bounded cache of graphs."""

import threading
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.cache import LRUCache
from data.tree import GraphFile, collection_named

TILE = collection_named("tile:xla")


def test_least_recent_items_leave_a_full_cache_first() -> None:
    made: list[str] = []

    def make(file: GraphFile) -> bytes:
        made.append(file.name)
        return bytes(int(file.name))

    cache = LRUCache(make, size=len, max_bytes=100)
    kept: list[int] = []  # most recent last
    for size in np.random.default_rng(0).integers(5, 130, 300):
        expected = list(map(int, made)) if size in kept else [*map(int, made), int(size)]
        kept = [*(other for other in kept if other != size), int(size)]
        while len(kept) > 1 and sum(kept) > 100:
            kept.pop(0)
        assert len(cache(GraphFile(TILE, "train", f"{size}", Path(f"{size}")))) == size
        assert list(map(int, made)) == expected
    assert 0 < len(made) < 300


def test_prefetched_item_is_made_once_by_another_thread() -> None:
    made: list[tuple[str, str]] = []

    def make(file: GraphFile) -> bytes:
        made.append((file.name, threading.current_thread().name))
        return bytes(10)

    cache = LRUCache(make, size=len, max_bytes=25)
    one, two, three = (GraphFile(TILE, "train", name, Path(name)) for name in "abc")
    cache(one)
    cache.prefetch([one, two, three])  # one is kept
    cache.prefetch([two])
    assert cache(three) == cache(two) == bytes(10)
    assert [name for name, _ in made] == ["a", "b", "c"]
    assert [thread.startswith("prefetch") for _, thread in made] == [False, True, True]
    cache(one)  # was least recent of three that do not fit
    assert [name for name, _ in made] == ["a", "b", "c", "a"]


def test_error_of_prefetching_is_raised_at_the_request() -> None:
    def make(file: GraphFile) -> bytes:
        raise PipelineError(f"{file.path}: damaged")

    cache = LRUCache(make, size=len)
    file = GraphFile(TILE, "train", "a", Path("a"))
    cache.prefetch([file])
    with pytest.raises(PipelineError, match="a: damaged"):
        cache(file)
