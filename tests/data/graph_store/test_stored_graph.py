"""A graph that went through the store is the graph of its npz file, to the bit."""

import shutil
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store import stored_graph
from data.graph_store.stored_graph import (
    fingerprint,
    is_fresh,
    open_tensors,
    store_graph,
    stored_file,
    write_tensors,
)
from data.graphs.graph import CONFIGS, LAYOUT, TILE, LayoutGraph, TileGraph
from data.read import read_graph, read_layout
from data.tree import GraphFile, find_graphs
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.data.packing.stores import check_same_graph
from tests.real_data import real_files, requires_real_data


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
    assert isinstance(graph, LayoutGraph | TileGraph)
    check_arrays(graph, read_arrays(source.path.read_bytes()))
    expected = {**LAYOUT, **CONFIGS} if isinstance(graph, LayoutGraph) else TILE
    assert open_tensors(stored.path).tensors.keys() == expected.keys()  # and nothing nobody reads


def check_arrays(graph: LayoutGraph | TileGraph, arrays: dict[str, NDArray[Any]]) -> None:
    plain = {"node_feat", "node_opcode", "edge_index"}
    if isinstance(graph, LayoutGraph):
        plain |= {"node_config_ids", "node_splits"}
        floats = arrays["node_config_feat"]
        for start in range(0, len(floats), 500):
            index = np.arange(start, min(start + 500, len(floats)))
            rows = graph.configs.rows(index).astype(np.float32)
            assert rows.tobytes() == (floats[index] + np.float32(0)).tobytes()
    else:
        plain |= {"config_feat"}
        normalizers = arrays["config_runtime_normalizers"]
        np.testing.assert_array_equal(graph.runtime_normalizers, normalizers)
        want = arrays["config_runtime"] / normalizers
        np.testing.assert_array_equal(graph.normalized_runtime, want)
    for name in plain:
        assert getattr(graph, name).tobytes() == np.ascontiguousarray(arrays[name]).tobytes()
    np.testing.assert_array_equal(graph.runtime_ns, arrays["config_runtime"])
    assert graph.is_labelled == (graph.file.split != "test")


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_a_real_graph_comes_back_exactly(file: GraphFile, tmp_path: Path) -> None:
    check_stored(file, tmp_path)


def test_the_graphs_of_a_made_tree_come_back_exactly(tiny_tree: Path, tmp_path: Path) -> None:
    for file in find_graphs(tiny_tree):
        check_stored(file, tmp_path)


def test_a_graph_is_mapped_and_its_values_are_checked_once_in_a_process(
    layout_graph: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, check = [], stored_graph.check_layout
    monkeypatch.setattr(stored_graph, "check_layout", lambda *a: checked.append(check(*a)))
    stored = packed(layout_graph.file, tmp_path)
    for _ in range(3):
        graph = read_layout(stored)
        for values in (graph.node_feat, graph.configs.indices):
            assert isinstance(base_of(values), mmap)  # in the file: a few rows cost a few pages
    assert len(checked) == 1


def base_of(values: Any) -> object:
    while isinstance(values, np.ndarray | memoryview):
        values = values.obj if isinstance(values, memoryview) else values.base
    return values


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_a_stored_graph_of_another_version_or_without_a_tensor_is_refused(
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
    some = {name: values for name, values in opened.tensors.items() if name != "node_opcode"}
    write_tensors(other.path, some, facts=opened.facts)
    with pytest.raises(PipelineError, match=r"tensor 'node_opcode' is missing"):
        read_graph(other)


def test_a_graph_at_another_place_of_the_tree_is_another_source(
    layout_graph: LayoutGraph, tmp_path: Path
) -> None:
    stored = packed(layout_graph.file, tmp_path)
    assert is_fresh(stored, layout_graph.file)
    assert not is_fresh(stored, replace(layout_graph.file, split="valid"))
    assert not is_fresh(stored, replace(layout_graph.file, name="other"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vector_codes", lambda values: values[:, None]),
        ("vector_codes", lambda values: values + 7**18),
        ("vector_codes", lambda values: values[::-1]),
        ("config_indices", lambda values: values + np.uint8(200)),
        ("config_indices", lambda values: values.astype(np.int64) - 1),
        ("config_indices", lambda values: values[:-1]),
        ("column_of", lambda values: values + 1000),
        ("column_vectors", lambda values: values - 1000),
        ("column_sizes", lambda values: values + 1000),
        ("column_sizes", lambda values: values * 0),
        ("node_feat", lambda values: values * np.nan),
        ("node_feat", lambda values: values[:-1]),
        ("node_feat", lambda values: values.astype(np.float64)),
        ("node_opcode", lambda values: values[:0]),
        ("edge_index", lambda values: values + 10**6),
        ("runtime_ns", lambda values: -values),
        ("node_config_ids", lambda values: values * 0),
        ("node_splits", lambda values: values + 1),
        ("node_splits", lambda values: values[0]),
        ("config_feat", lambda values: values * np.nan),
        ("runtime_normalizers", lambda values: values * 0),
    ],
)
def test_altered_values_are_refused_though_their_checksum_is_right(
    name: str, change: Any, layout_graph: LayoutGraph, tile_graph: TileGraph, tmp_path: Path
) -> None:
    stored = packed((layout_graph if name in {**LAYOUT, **CONFIGS} else tile_graph).file, tmp_path)
    opened = open_tensors(stored.path)
    tensors = {**opened.tensors, name: change(opened.tensors[name])}
    write_tensors(stored.path, tensors, facts=opened.facts)
    with pytest.raises(PipelineError) as caught:
        read_graph(stored)
    assert str(caught.value).startswith(f"{stored.path}: damaged: tensor '")


def test_a_fingerprint_is_of_places_and_content_alone(tiny_tree: Path, tmp_path: Path) -> None:
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
