"""The bounded cache, against one that adds its items up each time; and what it counts."""

import mmap
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import PipelineError
from data.tree import GraphFile, collection_named
from models.training.dataset import LRUCache, bytes_held
from models.training.device import prepare_torch

TILE = collection_named("tile:xla")


def test_the_least_recent_items_go_first_once_there_are_too_many_bytes() -> None:
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


def test_what_is_prefetched_is_made_once_and_by_another_thread() -> None:
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


def test_a_fault_in_prefetching_is_raised_where_the_item_is_asked_for() -> None:
    def make(file: GraphFile) -> bytes:
        raise PipelineError(f"{file.path}: damaged")

    cache = LRUCache(make, size=len)
    file = GraphFile(TILE, "train", "a", Path("a"))
    cache.prefetch([file])
    with pytest.raises(PipelineError, match="a: damaged"):
        cache(file)


@dataclass(frozen=True)
class Held:
    one: object
    other: object = None


def test_each_buffer_counts_once_and_what_is_mapped_not_at_all(tmp_path: Path) -> None:
    array = np.zeros((100, 3))
    prepare_torch(seed=0, threads=1)
    matrix = torch.sparse_csr_tensor([0, 1, 2], [1, 0], torch.ones(2), size=(2, 2))
    assert bytes_held(Held(array, (array[:5], torch.from_numpy(array)))) == array.nbytes
    assert bytes_held([Held(torch.zeros(7)), Held(torch.zeros(9)[:2])]) == 4 * (7 + 9)
    assert bytes_held(matrix) == 3 * 8 + 2 * 8 + 2 * 4  # rows, columns, values
    (tmp_path / "file").write_bytes(bytes(800))
    with (tmp_path / "file").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.int64)
    assert bytes_held(Held(mapped.reshape(10, 10)[2:], "text")) == 0
