"""A store sent through a folder of compressed files is the same store, and is found fresh."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.settings import SAMPLE
from data.graph_store.archived_graph import shipped_path
from data.graph_store.archived_store import find_shipped, ship_store, unpack_store
from data.graph_store.files import is_fresh
from data.graph_store.prepare import Prepared, prepare
from data.tree import find_graphs
from tests.command_line import call
from tests.real_data import REAL, requires_real_data


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, but for the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def check_sent(tree: Path, folder: Path) -> None:
    """Send the store of a tree through an archive; compare bytes, and look for it as `run` does."""
    prepared = prepare(find_graphs(tree), folder / "store")
    ship_store(prepared, folder / "archive")
    unpacked = unpack_store(folder / "archive", folder / "other")
    assert all(entry.error is None and entry.is_new for entry in unpacked)
    assert contents(folder / "other") == contents(folder / "store")
    assert [entry.stored for entry in unpacked if entry.stored is None] == []
    for entry, sent in zip(prepared, unpacked, strict=True):
        assert sent.stored is not None and is_fresh(sent.stored, entry.source)


def test_the_tiny_tree_comes_back(tiny_tree: Path, tmp_path: Path) -> None:
    check_sent(tiny_tree, tmp_path)


def test_the_embedded_sample_comes_back(tmp_path: Path) -> None:
    check_sent(SAMPLE, tmp_path)


@requires_real_data
def test_real_files_come_back(tmp_path: Path) -> None:
    check_sent(REAL, tmp_path)


@pytest.fixture
def prepared(tiny_tree: Path, tmp_path: Path) -> list[Prepared]:
    """A store of the tiny tree's first files."""
    return prepare(find_graphs(tiny_tree)[:6], tmp_path / "store")


def test_what_is_there_is_skipped_and_a_stop_goes_on(
    prepared: list[Prepared], tmp_path: Path
) -> None:
    archive = tmp_path / "archive"

    def stop(_: str, done: int, __: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ship_store(prepared, archive, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        unpack_store(archive, tmp_path / "other", progress=stop)
    first = {path: path.stat().st_mtime_ns for path in archive.rglob("*.zst")}
    assert len(first) == 3
    left = next(iter(first)).with_name(f".{next(iter(first)).name}.abc.tmp")
    left.write_bytes(b"of a call that was killed")

    ship_store(prepared, archive)
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert not left.exists()
    assert len(contents(archive)) == len(prepared)
    unpacked = unpack_store(archive, tmp_path / "other")
    assert [entry.is_new for entry in unpacked] == [False] * 3 + [True] * 3
    assert contents(tmp_path / "other") == contents(tmp_path / "store")


def test_a_graph_of_another_source_is_sent_anew(
    prepared: list[Prepared], tiny_tree: Path, tmp_path: Path
) -> None:
    archive, tree = tmp_path / "archive", tmp_path / "tree"
    ship_store(prepared, archive)
    unpack_store(archive, tmp_path / "other")
    shutil.copytree(tiny_tree, tree)
    first, second = find_graphs(tree)[:2]
    shutil.copy(second.path, first.path)
    changed = prepare(find_graphs(tree)[:6], tmp_path / "store")
    ship_store(changed, archive)
    unpacked = unpack_store(archive, tmp_path / "other")
    assert [entry.is_new for entry in unpacked] == [True] + [False] * 5
    assert contents(tmp_path / "other") == contents(tmp_path / "store")


def test_a_damaged_file_leaves_the_others_alone(prepared: list[Prepared], tmp_path: Path) -> None:
    archive, other = tmp_path / "archive", tmp_path / "other"
    ship_store(prepared, archive)
    bad = find_shipped(archive)[2].path
    content = bytearray(bad.read_bytes())
    content[-1] ^= 1
    bad.write_bytes(content)
    unpacked = unpack_store(archive, other)
    assert [entry.stored is None for entry in unpacked] == [index == 2 for index in range(6)]
    assert str(unpacked[2].error).startswith(f"{bad}: damaged: ")
    assert len(contents(other)) == 5


def test_only_files_in_their_place_are_looked_at(prepared: list[Prepared], tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    ship_store(prepared, archive)
    files = find_shipped(archive)
    shutil.copy(files[0].path, archive / "elsewhere.safetensors.zst")
    shutil.copy(files[0].path, files[0].path.with_name(".hidden.safetensors.zst"))
    assert find_shipped(archive) == files
    assert [shipped_path(archive, entry.source) for entry in prepared] == [
        file.path for file in files
    ]


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PipelineError, match=f"^{folder}: no archived graph found; expected"):
            unpack_store(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_the_commands_send_a_store(tiny_tree: Path, tmp_path: Path) -> None:
    store, archive, other = tmp_path / "store", tmp_path / "archive", tmp_path / "other"
    table = call("prepare", "--data", tiny_tree, "--store", store, "--archive", archive)
    assert table.splitlines()[0].endswith("store MiB  archive MiB")
    again = call("prepare", "--data", tiny_tree, "--store", store, "--archive", archive, "--json")
    report = json.loads(again)
    sizes = {entry["archived"]: entry["archived_bytes"] for entry in report["files"]}
    assert sizes == {str(file.path): file.path.stat().st_size for file in find_shipped(archive)}

    assert "archive MiB" not in call("prepare", "--from-archive", archive, "--store", other)
    assert contents(other) == contents(store)
    found = json.loads(call("prepare", "--data", tiny_tree, "--store", other, "--json"))
    assert not any(entry["is_new"] for entry in found["files"])
    assert "archived" not in found["files"][0]


def test_a_damaged_archive_ends_with_1(tiny_tree: Path, tmp_path: Path) -> None:
    store, archive, other = tmp_path / "store", tmp_path / "archive", tmp_path / "other"
    call("prepare", "--data", tiny_tree, "--store", store, "--archive", archive)
    bad = find_shipped(archive)[0].path
    bad.write_bytes(bad.read_bytes()[:-1])
    printed = call("prepare", "--from-archive", archive, "--store", other, expect=1)
    assert f"error: {bad}: damaged: " in printed


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--archive", "a", "--from-archive", "b"], "give one of them"),
        (["--from-archive", "b"], "--from-archive: give --store STORE too"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], line: str) -> None:
    assert line in call("prepare", *options, expect=2)


def test_a_missing_package_is_noticed_before_anything_is_packed(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    store = tmp_path / "store"
    printed = call(
        "prepare", "--data", tiny_tree, "--store", store, "--archive", tmp_path / "a", expect=1
    )
    assert printed.startswith("error: zstandard cannot be imported")
    assert len(printed.splitlines()) == 1
    assert not store.exists()
