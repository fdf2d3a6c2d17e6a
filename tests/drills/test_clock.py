"""Clocks that jump and files that lie about their times: neither decides anything."""

import os
import shutil
import time
from pathlib import Path

import pytest

from data.graph_store.prepare import prepare
from data.tree import find_graphs
from tests.data.packing.stores import contents
from tests.drills.outcome import check_same, check_same_store
from tests.drills.processes import Scene, Watched, finish

# Each call of time.time() is years away from the one before, in either direction.
JUMPS = """
import random, sys, time
if "pipeline" in sys.orig_argv:
    real, draw = time.time, random.Random(0)
    time.time = lambda: real() + draw.uniform(-9e8, 9e8)
    time.time_ns = lambda: int(1e9 * time.time())
"""
FAR_S = 20 * 365 * 86400


def set_times(folder: Path, at_s: float) -> None:
    """Let all files of a folder say that they were changed at a time."""
    for path in folder.rglob("*"):
        os.utime(path, (at_s, at_s))


@pytest.mark.parametrize("away_s", [-FAR_S, FAR_S], ids=["past", "future"])
def test_times_of_files_do_not_make_a_store_stale_or_fresh(
    away_s: float, drill_tree: Path, tmp_path: Path
) -> None:
    tree, store = tmp_path / "tree", tmp_path / "store"
    shutil.copytree(drill_tree, tree)
    files = find_graphs(tree)
    prepare(files, store)
    set_times(tree, time.time() + away_s)
    set_times(store, time.time() - away_s)
    assert not any(entry.is_new for entry in prepare(files, store))


def test_another_content_of_the_same_size_and_time_is_noticed(
    drill_tree: Path, tmp_path: Path
) -> None:
    """What counts is the checksum of each array in the archive's index, not the file's time."""
    tree, store = tmp_path / "tree", tmp_path / "store"
    shutil.copytree(drill_tree, tree)
    files = find_graphs(tree)
    prepare(files, store)
    tiles = [f for f in files if f.collection.kind == "tile" and f.split == "train"]
    sizes: dict[int, list[Path]] = {}
    for path in (file.path for file in tiles):
        sizes.setdefault(path.stat().st_size, []).append(path)
    path = tiles[0].path
    before = path.stat()
    other = tiles[1].path.read_bytes()
    pad = before.st_size - len(other)
    path.write_bytes(other + bytes(max(0, pad)) if pad >= 0 else other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    entries = prepare(files, store)
    noticed = [entry.source.path for entry in entries if entry.is_new or entry.error]
    assert noticed == [path]


@pytest.mark.slow
def test_a_run_under_a_clock_that_jumps_ends_the_same(calm: Scene, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    scene = calm.elsewhere(tmp_path / "jumps")
    words = scene.run("--max-minutes", "60")
    watched = Watched(scene, words, environment={"PYTHONPATH": str(tmp_path)})
    assert watched.end() == 0, watched.lines
    check_same(scene.out, calm.out)


@pytest.mark.slow
def test_a_run_goes_on_with_files_from_the_future(calm: Scene, tmp_path: Path) -> None:
    scene = calm.elsewhere(tmp_path / "future")
    shutil.copytree(calm.out, scene.out)
    shutil.copytree(calm.store, scene.store)
    (scene.out / "DONE").unlink()
    for folder in (scene.out, scene.store):
        set_times(folder, time.time() + FAR_S)
    before = contents(scene.store)
    watched = finish(scene, warm=True)
    assert not any(stage.startswith(("pack", "train")) for _, stage in watched.stages)
    assert contents(scene.store) == before
    check_same(scene.out, calm.out)
    check_same_store(scene.store, calm.store)
