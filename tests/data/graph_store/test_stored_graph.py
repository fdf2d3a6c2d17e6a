"""A graph that went through the store is the graph of its npz file, to the bit.

Its tensor files are refused once a single bit is another.
"""

import os
import shutil
import tracemalloc
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from common.errors import PipelineError
from data.graph_store.stored_graph import (
    CONFIGS,
    TYPES,
    fingerprint,
    is_fresh,
    open_tensors,
    read_facts,
    read_graph,
    read_layout,
    store_graph,
    stored_file,
    write_tensors,
)
from data.graphs.graph import LAYOUT, TILE, LayoutGraph, TileGraph
from data.tree import GraphFile, find_graphs
from tests.data.graph_store.conftest import check_same_graph
from tests.data.graphs.test_packing import same_bits
from tests.data.npz.damaged_archives import flipped, read_arrays, repacked
from tests.support.real_data import real_files, requires_real_data

FACTS = {"version": "1", "source": 'größer "quoted"\n', "": ""}
SHAPES = [(), (1,), (0,), (7,), (3, 5), (0, 4), (4, 0), (2, 3, 4)]
MAX_ALLOCATED = 4 << 20


def every_type(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return tensors of every type and of many shapes, some of them empty."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, dtype in TYPES.items():
        for shape in SHAPES:
            values = rng.uniform(0, 100, shape)
            tensors[f"{name}-{'x'.join(map(str, shape))}"] = np.asarray(values).astype(dtype)
    return tensors


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "file"
    tensors: dict[str, NDArray[Any]] = {
        "wide": np.arange(3),
        "floats": np.eye(2, dtype=np.float32),
        "none": np.empty((0, 2), np.uint8),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    write_tensors(path, tensors, facts={"version": "1", "source": "0123456789abcdef"})
    return path.read_bytes()


def refusal(path: Path, content: bytes) -> str:
    """Return the line that refuses a file of this content, and starts with its name."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    with pytest.raises(PipelineError) as error:
        open_tensors(path)
    line = str(error.value)
    assert line.startswith(f"{path}: damaged: ") and len(line) < len(str(path)) + 300
    return line


def test_written_tensors_are_read_here_and_by_the_library(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "file", tensors, facts=FACTS)
    opened = open_tensors(tmp_path / "file")
    assert opened.facts == FACTS == read_facts(tmp_path / "file")
    assert opened.tensors.keys() == tensors.keys()
    with safetensors.safe_open(tmp_path / "file", framework="numpy") as by_library:
        assert set(by_library.keys()) == tensors.keys()
        for name, values in tensors.items():
            same_bits(by_library.get_tensor(name), values)
            same_bits(opened.tensors[name], values)
            assert values.size == 0 or not opened.tensors[name].flags.writeable
            assert opened.tensors[name].flags.aligned


def test_equal_input_gives_equal_bytes_whatever_its_order(tmp_path: Path) -> None:
    tensors = every_type()
    write_tensors(tmp_path / "one", tensors, facts=FACTS)
    write_tensors(
        tmp_path / "two", dict(reversed(tensors.items())), facts=dict(reversed(FACTS.items()))
    )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_each_flipped_bit_is_noticed_and_none_costs_memory(small: bytes, tmp_path: Path) -> None:
    tracemalloc.start()
    for position in range(len(small)):
        refusal(tmp_path / f"file{position}", flipped(small, position, 1 << (position % 8)))
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED
    tracemalloc.stop()


def test_file_cut_anywhere_or_longer_is_refused(small: bytes, tmp_path: Path) -> None:
    for length in range(len(small)):
        refusal(tmp_path / "file", small[:length])
    refusal(tmp_path / "file", small + b"\0")


def test_bytes_are_checked_once_per_version_of_a_file(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(small)
    open_tensors(path)
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_tensors(path).tensors["bytes"][-1] == ord("x")  # not read again
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
    assert open_tensors(stored.path).tensors.keys() == expected  # and nothing nobody reads


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


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_stored_graph_of_another_version_is_refused(
    kind: str, layout_graph: LayoutGraph, tile_graph: TileGraph, tmp_path: Path
) -> None:
    source = (layout_graph if kind == "layout" else tile_graph).file
    stored = packed(source, tmp_path)
    opened = open_tensors(stored.path)
    other = replace(stored, path=tmp_path / "other.safetensors")
    write_tensors(other.path, opened.tensors, facts={**opened.facts, "version": "0"})
    with pytest.raises(PipelineError, match=r"other.safetensors: is of store version 0; expected "):
        read_graph(other)
    assert not is_fresh(other, source)


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
