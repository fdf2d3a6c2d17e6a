"""The store is brought up to date: what changed is packed again, what is damaged is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from common.progress import watched_by
from data.graph_store import prepare as preparing
from data.graph_store import stored_graph
from data.graph_store.prepare import Prepared, prepare, stored_graphs
from data.graph_store.stored_graph import stored_file
from data.read import read_graph
from data.tree import GraphFile, find_graphs
from tests.data.npz.damaged_archives import Victim
from tests.data.packing.stores import check_same_graph, contents


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    """A tree to change."""
    return Path(shutil.copytree(tiny_tree, tmp_path / "data"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that does not exist yet."""
    return tmp_path / "store"


def new_ones(prepared: list[Prepared]) -> list[GraphFile]:
    assert not [entry.error for entry in prepared if entry.error]
    return [entry.source for entry in prepared if entry.is_new]


def with_other_runtimes(path: Path) -> None:
    """Write a graph again with its runtimes turned round."""
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays["config_runtime"] = arrays["config_runtime"][::-1]
    np.savez_compressed(path, **arrays)


def test_all_files_are_packed_once_in_the_order_given(tree: Path, store: Path) -> None:
    files = find_graphs(tree)[::-1]
    calls: list[tuple[str, int, int]] = []
    with watched_by(lambda *call: calls.append(call)):
        prepared = prepare(files, store)
    assert [entry.source for entry in prepared] == files == new_ones(prepared)
    assert calls == [("pack 28 files", number, 28) for number in range(28 + 1)]
    for entry in prepared:
        assert entry.stored == stored_file(store, entry.source)
        check_same_graph(read_graph(entry.stored), read_graph(entry.source))
    before = contents(store)
    times = {path: path.stat().st_mtime_ns for path in store.rglob("*.safetensors")}
    assert len(before) == len(times) == len(files)
    again = prepare(files, store)
    assert new_ones(again) == []
    assert [entry.stored for entry in again] == [entry.stored for entry in prepared]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert contents(store) == before


def test_only_what_changed_is_packed_again(tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    prepare(files, store)
    before = contents(store)
    touched, changed, deleted, lost, cut, moved = files[1:26:4][:6]
    touched.path.touch()
    with_other_runtimes(changed.path)
    deleted.path.unlink()
    stored_file(store, lost).path.unlink()
    cut_path = stored_file(store, cut).path
    cut_path.write_bytes(cut_path.read_bytes()[:100])
    name = moved.path.rename(moved.path.with_name("moved.npz"))
    prepared = prepare(find_graphs(tree), store)
    assert {file.path for file in new_ones(prepared)} == {changed.path, lost.path, cut.path, name}
    assert deleted not in [entry.source for entry in prepared]
    differs = {name for name, content in contents(store).items() if before.get(name) != content}
    places = [stored_file(store, changed).path, stored_file(store, moved).path]
    places[1] = places[1].with_name("moved.safetensors")
    assert differs == {str(path.relative_to(store)) for path in places}
    for entry in prepared:
        assert entry.stored is not None
        check_same_graph(read_graph(entry.stored), read_graph(entry.source))


def test_a_new_version_packs_all_again(
    tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_graphs(tree)
    prepare(files, store)
    monkeypatch.setattr(stored_graph, "VERSION", "another")
    assert new_ones(prepare(files, store)) == files
    assert new_ones(prepare(files, store)) == []
    for file in files:
        read_graph(stored_file(store, file))


def test_processes_and_threads_change_no_byte(
    tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_graphs(tree)
    monkeypatch.setattr(preparing, "SMALL_TREE_BYTES", 0)
    prepare(files, store)
    calls: list[tuple[str, int, int]] = []
    other = store.with_name("other")
    with watched_by(lambda *call: calls.append(call)):
        prepared = prepare(files, other, workers=2)
    assert [entry.source for entry in prepared] == files == new_ones(prepared)
    assert contents(other) == contents(store)
    assert calls == [("pack 28 files", number, 28) for number in range(28 + 1)]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def no_archive(path: Path) -> None:
    path.write_bytes(b"not a zip archive")


def bad_runtime(path: Path) -> None:
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays["config_runtime"][-1] = -1
    np.savez_compressed(path, **arrays)


def bad_config(path: Path) -> None:
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    key = "node_config_feat" if "node_config_feat" in arrays else "config_feat"
    arrays[key][-1, -1] = np.nan
    np.savez_compressed(path, **arrays)


def gone(path: Path) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path], None]] = [cut, no_archive, bad_runtime, bad_config, gone]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_stored", [False, True])
def test_damaged_files_are_named_and_nothing_of_them_is_left(
    is_stored: bool, workers: int, tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "SMALL_TREE_BYTES", 0)
    files = find_graphs(tree)
    if is_stored:
        prepare(files, store)
    damaged = dict(zip(files[::5], DAMAGES, strict=False))
    assert {file.collection.kind for file in damaged} == {"layout", "tile"}
    good = {file: file.path.read_bytes() for file in damaged}
    for file, damage in damaged.items():
        damage(file.path)
    prepared = prepare(files, store, workers=workers)
    for entry in prepared:
        if entry.source not in damaged:
            assert entry.error is None and entry.is_new is not is_stored
            assert entry.stored is not None and entry.stored.path.is_file()
            continue
        with pytest.raises(PipelineError) as error:
            read_graph(entry.source)
        assert entry.error == str(error.value)
        assert entry.stored is None and not stored_file(store, entry.source).path.exists()
    assert len(contents(store)) == len(files) - len(damaged)
    with pytest.raises(PipelineError, match="`audit` lists all damaged files") as first:
        stored_graphs(tree, store=store, splits=("train",))
    assert str(first.value).startswith(f"{files[0].path}: ")
    for file, content in good.items():
        file.path.write_bytes(content)
    assert new_ones(prepare(files, store)) == list(damaged)


def test_packed_bytes_that_rot_after_packing_leave_what_they_were(tree: Path, store: Path) -> None:
    """The archive's index still says what was packed, and that is what the store holds."""
    file = find_graphs(tree)[-1]
    want = read_graph(file)
    prepare([file], store)
    content = bytearray(file.path.read_bytes())
    victim = Victim(file.path.read_bytes(), {})
    configs = next(e for e in victim.entries() if e.filename == "node_config_feat.npy")
    content[victim.data_start(configs) + configs.compress_size // 2] ^= 1
    file.path.write_bytes(content)
    with pytest.raises(PipelineError):
        read_graph(file)
    (entry,) = prepare([file], store)
    assert entry.stored is not None and not entry.is_new
    check_same_graph(read_graph(entry.stored), want)


def test_a_store_whose_name_begins_the_name_of_the_data_is_no_confusion(
    tiny_tree: Path, tmp_path: Path
) -> None:
    tree = Path(shutil.copytree(tiny_tree, tmp_path / "graphs-raw"))
    files = find_graphs(tree)
    cut(files[0].path)
    prepared = prepare(files, tmp_path / "graphs")
    assert [entry.source for entry in prepared if entry.error] == files[:1]
    inside = prepare(files, tree.parent)  # the store is around the data
    assert [entry.source for entry in inside if entry.error] == files[:1]


def test_a_file_that_is_too_large_for_memory_is_named_and_others_are_packed(
    tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = find_graphs(tree)
    real = preparing.store_graph

    def store_graph(source: GraphFile, stored: GraphFile) -> None:
        if source == files[3]:
            raise MemoryError
        real(source, stored)

    monkeypatch.setattr(preparing, "store_graph", store_graph)
    prepared = prepare(files, store)
    assert {entry.source: entry.error for entry in prepared if entry.error} == {
        files[3]: f"{files[3].path}: does not fit into memory"
    }


def test_what_a_killed_process_left_is_swept_up_and_nothing_else(tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    prepare(files, store)
    want = contents(store)
    folder = stored_file(store, files[-1]).path.parent
    halves = (folder / ".graph.safetensors.abc123.tmp",)
    others = (folder / "other.tmp", store / ".cache" / ".notes.tmp", folder / ".notes.tmp")
    others[1].parent.mkdir()
    for path in (*halves, *others):
        path.write_bytes(b"somebody's")
    prepare(files[:1], store)
    kept = {str(path.relative_to(store)): b"somebody's" for path in others}
    assert contents(store) == want | kept


@pytest.mark.parametrize("n_bytes", [1, 100])
def test_a_stored_graph_that_was_cut_is_made_again(n_bytes: int, tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    prepare(files, store)
    want = contents(store)
    path = stored_file(store, files[0]).path
    path.write_bytes(path.read_bytes()[:-n_bytes])
    assert [entry.is_new for entry in prepare(files, store)] == [True] + [False] * (len(files) - 1)
    assert contents(store) == want


def test_stored_graphs_lists_the_files_of_the_store(tree: Path, store: Path) -> None:
    found = stored_graphs(tree, store=store, splits=("valid", "test"))
    files = find_graphs(tree, splits=("valid", "test"))
    assert found == [stored_file(store, file) for file in files]
    assert len(contents(store)) == len(files)
