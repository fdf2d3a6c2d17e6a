"""The bounded cache, against one that adds its items up each time."""

import threading
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.tree import GraphFile, collection_named
from models.training.dataset import RecentlyUsed

TILE = collection_named("tile:xla")


def test_the_least_recent_items_go_first_once_there_are_too_many_bytes() -> None:
    made: list[str] = []

    def make(file: GraphFile) -> bytes:
        made.append(file.name)
        return bytes(int(file.name))

    cache = RecentlyUsed(make, len, max_bytes=100)
    kept: list[int] = []  # most recent last
    for size in np.random.default_rng(0).integers(5, 130, 300):
        expected = list(map(int, made)) if size in kept else [*map(int, made), int(size)]
        kept = [*(other for other in kept if other != size), int(size)]
        while len(kept) > 1 and sum(kept) > 100:
            kept.pop(0)
        assert len(cache(GraphFile(TILE, "train", f"{size}", Path(f"{size}")))) == size
        assert list(map(int, made)) == expected
    assert 0 < len(made) < 300


def test_what_is_looked_ahead_for_is_made_once_and_by_another_thread() -> None:
    made: list[tuple[str, str]] = []

    def make(file: GraphFile) -> bytes:
        made.append((file.name, threading.current_thread().name))
        return bytes(10)

    cache = RecentlyUsed(make, len, max_bytes=25)
    one, two, three = (GraphFile(TILE, "train", name, Path(name)) for name in "abc")
    cache(one)
    cache.look_ahead([one, two, three])  # one is kept
    cache.look_ahead([two])
    assert cache(three) == cache(two) == bytes(10)
    assert [name for name, _ in made] == ["a", "b", "c"]
    assert [thread.startswith("look-ahead") for _, thread in made] == [False, True, True]
    cache(one)  # was least recent of three that do not fit
    assert [name for name, _ in made] == ["a", "b", "c", "a"]


def test_a_fault_in_looking_ahead_is_raised_where_the_item_is_asked_for() -> None:
    def make(file: GraphFile) -> bytes:
        raise PipelineError(f"{file.path}: damaged")

    cache = RecentlyUsed(make, len, max_bytes=25)
    file = GraphFile(TILE, "train", "a", Path("a"))
    cache.look_ahead([file])
    with pytest.raises(PipelineError, match="a: damaged"):
        cache(file)
