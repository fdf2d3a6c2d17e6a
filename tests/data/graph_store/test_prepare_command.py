"""`prepare` packs a tree, says what it did, and refuses what is wrong before it begins."""

import fcntl
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from data.graph_store.prepare import LOCK
from data.graph_store.stored_graph import stored_file
from data.tree import GraphFile, find_graphs
from features import pruning
from tests.command_line import call
from tests.data.packing.stores import contents


def prepare(tree: Path, store: Path, *options: object, expect: int = 0) -> str:
    return call("prepare", "--data", tree, "--store", store, *options, expect=expect)


def test_the_table_counts_files_by_collection_and_split(tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    header, *lines = prepare(tree, store).splitlines()
    assert header.split()[:4] == ["collection", "split", "files", "bad"]
    rows = [line.split() for line in lines[:15]]
    parts = [(file.collection.name, file.split) for file in files]
    assert [(row[0], row[1]) for row in rows] == list(dict.fromkeys(parts))
    for row in rows:
        n_files = str(parts.count((row[0], row[1])))
        assert row[2:5] == [n_files, "0", n_files]
        assert 0 < float(row[5]) < 1 and 0 < float(row[6]) < 1
    assert lines[15].split() == ["store", str(store)]
    again = [line.split() for line in prepare(tree, store).splitlines()[1:16]]
    assert [row[:4] + row[5:] for row in again] == [row[:4] + row[5:] for row in rows]
    assert {row[4] for row in again} == {"0"}


def test_json_says_what_became_of_each_file_in_the_trees_own_store(tree: Path) -> None:
    for is_new in (True, False):
        printed = json.loads(call("prepare", "--data", tree, "--json"))
        store = Path(printed["store"])
        assert store.name.startswith("data-") and not store.is_relative_to(tree)
        for file, entry in zip(find_graphs(tree), printed["files"], strict=True):
            path = stored_file(store, file).path
            assert entry == {
                "id": file.submission_id,
                "split": file.split,
                "error": None,
                "is_new": is_new,
                "source_bytes": file.path.stat().st_size,
                "stored": str(path),
                "stored_bytes": path.stat().st_size,
            }


def test_a_damaged_file_is_named_and_the_others_are_packed(tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    files[4].path.write_bytes(files[4].path.read_bytes()[:-1])
    printed = prepare(tree, store, expect=1)
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and errors[0].startswith(f"error: {files[4].path}: ")
    assert printed.splitlines()[1].split()[:5] == ["tile:xla", "train", "6", "1", "5"]
    entries = json.loads(prepare(tree, store, "--json", expect=1))["files"]
    assert [f"error: {entry['error']}" for entry in entries if entry["error"]] == errors
    assert (entries[4]["stored"], entries[4]["stored_bytes"]) == (None, 0)
    assert len(contents(store)) == len(files) - 1


@pytest.mark.parametrize(
    ("options", "line"),
    [(("--prune", "no-such-rule"), "no such rule; known: none"), (("--workers", "0"), "workers")],
)
def test_wrong_usage_is_refused_before_anything_is_read(
    options: Sequence[str], line: str, store: Path, tmp_path: Path
) -> None:
    assert line in prepare(tmp_path / "missing", store, *options, expect=2)
    assert not store.exists()


def test_nobody_else_may_sweep_the_store_while_graphs_are_pruned(
    tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def store_pruned(files: Sequence[GraphFile], rule: str, **options: object) -> None:
        with (store / LOCK).open("w") as lock, pytest.raises(BlockingIOError):
            tried.append(rule)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(pruning, "store_pruned", store_pruned)
    prepare(tree, store, "--prune", "config")
    assert tried == ["config"]
