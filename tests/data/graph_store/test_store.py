"""The store: a packed graph is that of its npz file, to the bit, and updates pack what changed.

A tensor file is refused once a single bit is another, and damaged npz files are named.
"""

import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from common.errors import PipelineError
from common.progress import watched_by
from common.settings import ROOT
from data.graph_store import stored_graph
from data.graph_store.prepare import LOCK, Prepared, prepare, stored_graphs
from data.graph_store.stored_graph import (
    fingerprint,
    is_fresh,
    open_tensors,
    read_facts,
    read_graph,
    read_layout,
    store_graph,
    stored_file,
)
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile, find_graphs
from tests.data.graphs.test_packing import check_same, same_bits
from tests.data.npz.damaged_archives import flipped, read_arrays, repacked
from tests.support.command_line import call, python_in
from tests.support.real_data import real_files, requires_real_data


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tree, tmp_path / "data"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def contents(store: Path) -> dict[str, bytes]:
    """Return all files of a store but its lock, hidden ones too."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def check_same_graph(one: Graph, other: Graph) -> None:
    """Check that two graphs are the same to the bit, types included, wherever they come from."""
    assert type(one) is type(other)
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            same_bits(mine, its, field.name)
    if isinstance(one, LayoutGraph):
        assert isinstance(other, LayoutGraph)
        check_same(one.configs, other.configs)


def packed(source: GraphFile, store: Path) -> GraphFile:
    """Pack a graph; return it as a file of the store."""
    stored = stored_file(store, source)
    store_graph(source, stored)
    return stored


def test_changed_or_cut_file_is_refused(tile_graph: TileGraph, tmp_path: Path) -> None:
    content = packed(tile_graph.file, tmp_path).path.read_bytes()
    damaged = [content + b"\0"]
    for position in np.linspace(0, len(content) - 1, 30).astype(int).tolist():
        damaged += [flipped(content, position, 1 << (position % 8)), content[:position]]
    for number, other in enumerate(damaged):
        path = tmp_path / str(number)
        path.write_bytes(other)
        with pytest.raises(PipelineError, match=f"^{path}: damaged: ") as error:
            open_tensors(path)
        assert len(str(error.value)) < len(str(path)) + 300


def test_file_without_facts_is_one_line(tmp_path: Path) -> None:
    save_file({"a": np.arange(3)}, tmp_path / "plain", metadata={"version": "1"})
    for read in (open_tensors, read_facts):
        with pytest.raises(PipelineError, match=r"plain: damaged: .*it is made again"):
            read(tmp_path / "plain")


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_real_graph_comes_back_exactly(file: GraphFile, tmp_path: Path) -> None:
    stored = packed(file, tmp_path)
    assert is_fresh(stored, file)
    check_same_graph(read_graph(stored), read_graph(file))


def test_graph_is_mapped(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    """A few rows of a file cost a few pages of memory."""
    values: Any = read_layout(packed(layout_graph.file, tmp_path)).configs.indices
    while isinstance(values, np.ndarray | memoryview):
        values = values.obj if isinstance(values, memoryview) else values.base
    assert isinstance(values, mmap)


def test_stored_graph_of_another_version_is_refused(
    tile_graph: TileGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = packed(tile_graph.file, tmp_path)
    monkeypatch.setattr(stored_graph, "VERSION", "3")
    with pytest.raises(PipelineError, match=r"is of store version 2; expected 3; remove"):
        read_graph(stored)
    assert not is_fresh(stored, tile_graph.file)


def test_fingerprint_depends_on_places_and_content(tiny_tree: Path, tmp_path: Path) -> None:
    files = find_graphs(tiny_tree)
    whole = fingerprint(files)
    assert len(whole) == 16 and int(whole, 16) >= 0
    shutil.copytree(tiny_tree, tmp_path / "copy")
    assert fingerprint(find_graphs(tmp_path / "copy")) == whole == fingerprint(reversed(files))
    file, other = files[0], files[-1]
    arrays = read_arrays(file.path.read_bytes())
    path = tmp_path / file.path.name
    path.write_bytes(repacked(dict(reversed(arrays.items()))))
    own = fingerprint([file])
    assert fingerprint([replace(file, path=path)]) == own
    found = {whole, own, fingerprint([]), fingerprint([file, files[1]])}
    for change in ({"name": "other"}, {"split": "test"}, {"collection": other.collection}):
        found.add(fingerprint([replace(file, **change)]))
    for key in arrays:
        changed = arrays[key].copy()
        changed.reshape(-1)[-1] += 1
        path.write_bytes(repacked(arrays, **{key: changed}))
        found.add(fingerprint([replace(file, path=path)]))
    assert len(found) == 7 + len(arrays)


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
