"""Updates of the store: changed files are packed again, and damaged files are named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from common.progress import watched_by
from common.settings import ROOT
from data.graph_store.prepare import Prepared, prepare, stored_graphs
from data.graph_store.stored_graph import read_graph, stored_file
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile, find_graphs
from tests.data.graph_store.conftest import check_same_graph, contents
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.support.command_line import call, python_in


def new_ones(prepared: list[Prepared]) -> list[GraphFile]:
    assert not [entry.error for entry in prepared if entry.error]
    return [entry.source for entry in prepared if entry.is_new]


def with_runtimes(path: Path, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    arrays = read_arrays(path.read_bytes())
    runtimes = change(arrays["config_runtime"])
    path.write_bytes(repacked(arrays, config_runtime=runtimes))


def test_all_files_are_packed_once_in_order(tree: Path, store: Path) -> None:
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
    assert stored_graphs(tree, store=store) == [stored_file(store, file) for file in files[::-1]]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert contents(store) == before


def test_only_what_changed_is_packed_again(tree: Path, store: Path) -> None:
    files = find_graphs(tree)
    prepare(files, store)
    before = contents(store)
    touched, changed, deleted, lost, cut, moved = files[1:26:4][:6]
    touched.path.touch()
    with_runtimes(changed.path, lambda runtimes: runtimes[::-1])
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


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(path.read_bytes()[:-10]),
    lambda path: path.write_bytes(b"not a zip archive"),
    *[lambda path: with_runtimes(path, lambda runtimes: -runtimes - 1)] * 2,
    Path.unlink,
]


@pytest.mark.parametrize("is_stored", [False, True])
def test_damaged_files_are_named_and_nothing_of_them_is_left(
    is_stored: bool, tree: Path, store: Path
) -> None:
    files = find_graphs(tree)
    if is_stored:
        prepare(files, store)
    damaged = dict(zip(files[::5], DAMAGES, strict=False))
    assert {file.collection.kind for file in damaged} == {"layout", "tile"}
    good = {file: file.path.read_bytes() for file in damaged}
    for file, damage in damaged.items():
        damage(file.path)
    prepared = prepare(files, store)
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


def test_only_files_of_a_killed_process_are_removed(tree: Path, store: Path) -> None:
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


def test_command_counts_graphs_and_those_that_it_packed(tree: Path, store: Path) -> None:
    words = ("prepare", "--data", tree, "--store", store)
    n_files = len(find_graphs(tree))
    lines = [f"graphs      {n_files}, of which {n_files} were packed now", f"store       {store}"]
    assert call(*words).splitlines() == lines
    lines[0] = f"graphs      {n_files}, of which 0 were packed now"
    assert call(*words).splitlines() == lines


PACK = """
import sys
from pathlib import Path
from common.machine import own_peak_mib
from data.graph_store.prepare import prepare
from data.tree import find_graphs
prepare(find_graphs(Path(sys.argv[1])), Path(sys.argv[2]))
print(own_peak_mib())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_configs(tmp_path: Path) -> None:
    """The larger file inflates to 0.14 GB."""
    peaks = []
    for n_configs in (5_000, 10_000):
        path = write_sized(tmp_path / str(n_configs), GraphSize(3_500, 200, n_configs)).path
        words = (tmp_path / str(n_configs), tmp_path / "store" / str(n_configs))
        peaks.append(float(python_in(ROOT, "-c", PACK, *map(str, words))))
        path.unlink()
    assert peaks[0] < 200
    assert abs(peaks[1] - peaks[0]) < 10
