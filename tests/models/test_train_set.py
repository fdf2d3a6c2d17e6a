"""The bounded cache, against one that adds its items up each time."""

from pathlib import Path

import numpy as np

from data.tree import GraphFile, collection_named
from models.train_set import RecentlyUsed

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
