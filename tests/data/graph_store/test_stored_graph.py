"""A graph that went through the store is the graph of its npz file, to the bit.

Its tensor files are refused once a single bit is another.
"""

import os
import shutil
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.errors import PipelineError
from data.graph_store import stored_graph
from data.graph_store.stored_graph import (
    CONFIGS,
    fingerprint,
    is_fresh,
    open_tensors,
    read_facts,
    read_graph,
    read_layout,
    store_graph,
    stored_file,
)
from data.graphs.graph import LAYOUT, TILE, LayoutGraph, TileGraph
from data.tree import GraphFile, find_graphs
from tests.data.graph_store.conftest import check_same_graph
from tests.data.npz.damaged_archives import flipped, read_arrays, repacked
from tests.support.real_data import real_files, requires_real_data


def refusal(path: Path, content: bytes) -> str:
    """Return the line that refuses a file of this content, and starts with its name."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with pytest.raises(PipelineError) as error:
        open_tensors(path)
    line = str(error.value)
    assert line.startswith(f"{path}: damaged: ") and len(line) < len(str(path)) + 300
    return line


def test_changed_or_cut_file_is_refused(tile_graph: TileGraph, tmp_path: Path) -> None:
    content = packed(tile_graph.file, tmp_path).path.read_bytes()
    for position in np.linspace(0, len(content) - 1, 30).astype(int).tolist():
        refusal(tmp_path / f"flip{position}", flipped(content, position, 1 << (position % 8)))
        refusal(tmp_path / f"cut{position}", content[:position])
    refusal(tmp_path / "longer", content + b"\0")


def test_bytes_are_checked_once_per_version_of_a_file(
    tile_graph: TileGraph, tmp_path: Path
) -> None:
    path = packed(tile_graph.file, tmp_path).path
    open_tensors(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(bytes([255 - path.read_bytes()[-1]]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    open_tensors(path)  # not read again
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(PipelineError, match="not as it was written"):
        open_tensors(path)


def test_file_without_facts_a_missing_one_and_a_folder_are_one_line(tmp_path: Path) -> None:
    save_file({"a": np.arange(3)}, tmp_path / "plain", metadata={"version": "1"})
    for read in (open_tensors, read_facts):
        with pytest.raises(PipelineError, match=r"plain: damaged: .*it is made again"):
            read(tmp_path / "plain")
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(PipelineError, match="cannot be read: "):
                read(path)


def packed(source: GraphFile, store: Path) -> GraphFile:
    """Pack a graph; return it as a file of the store."""
    stored = stored_file(store, source)
    store_graph(source, stored)
    return stored


def check_stored(source: GraphFile, store: Path) -> None:
    stored = packed(source, store)
    assert is_fresh(stored, source)
    graph = read_graph(stored)
    assert graph.file == stored
    check_same_graph(graph, read_graph(source))
    expected = {*LAYOUT, *CONFIGS} if isinstance(graph, LayoutGraph) else {*TILE}
    assert open_tensors(stored.path).keys() == expected  # and nothing nobody reads


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_real_graph_comes_back_exactly(file: GraphFile, tmp_path: Path) -> None:
    check_stored(file, tmp_path)


def test_graphs_of_a_made_tree_come_back_exactly(tiny_tree: Path, tmp_path: Path) -> None:
    for file in find_graphs(tiny_tree):
        check_stored(file, tmp_path)


def test_graph_is_mapped(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    stored = packed(layout_graph.file, tmp_path)
    graph = read_layout(stored)
    for values in (graph.node_feat, graph.configs.indices):
        assert isinstance(base_of(values), mmap)  # in the file: a few rows cost a few pages


def base_of(values: Any) -> object:
    while isinstance(values, np.ndarray | memoryview):
        values = values.obj if isinstance(values, memoryview) else values.base
    return values


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
