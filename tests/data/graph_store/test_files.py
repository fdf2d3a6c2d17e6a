"""A graph that went through the store is the graph of its npz file, to the bit."""

import statistics
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import data.packing.npz_graphs
from common.errors import PipelineError
from common.settings import SAMPLE
from data.graph_store.files import is_fresh, store_graph, stored_file
from data.graph_store.tensor_file import open_tensors, write_tensors
from data.graphs.distinct import config_hashes
from data.graphs.graph import LayoutGraph, TileGraph
from data.packing.configs import PackedConfigs
from data.read import read_graph
from data.tree import GraphFile, find_graphs
from tests.data.packing.stores import check_same_graph
from tests.real_data import real_files, requires_real_data


def packed(source: GraphFile, store: Path) -> GraphFile:
    """Pack a graph; return it as a file of the store."""
    stored = stored_file(store, source)
    store_graph(source, stored)
    return stored


def check_stored(source: GraphFile, store: Path) -> None:
    """Check a stored graph against its source, read in the plainest way."""
    stored = packed(source, store)
    assert is_fresh(stored, source)
    graph = read_graph(stored)
    assert graph.file == stored
    check_same_graph(graph, read_graph(source))
    tensors = open_tensors(stored.path).tensors
    np.testing.assert_array_equal(tensors["config_hashes"], config_hashes(graph))
    with np.load(source.path) as archive:
        arrays = {key: archive[key] for key in archive.files}
    check_arrays(graph, arrays)
    key = "node_config_feat" if isinstance(graph, LayoutGraph) else "config_feat"
    check_groups(tensors, arrays[key], arrays["config_runtime"])
    for name, extreme in (("low", min), ("high", max)):
        column = tensors[f"node_feat_{name}"]
        assert (column.dtype, column.shape) == (np.float32, (140,))
        assert column.tolist() == [extreme(values) for values in arrays["node_feat"].T.tolist()]


def check_arrays(graph: object, arrays: dict[str, NDArray[Any]]) -> None:
    """Check a graph against what np.load says of its file."""
    plain = {"node_feat", "node_opcode", "edge_index"}
    if isinstance(graph, LayoutGraph):
        plain |= {"node_config_ids", "node_splits"}
        floats = arrays["node_config_feat"]
        for start in range(0, len(floats), 500):
            index = np.arange(start, min(start + 500, len(floats)))
            rows = graph.configs.rows(index).astype(np.float32)
            assert rows.tobytes() == (floats[index] + np.float32(0)).tobytes()
    else:
        assert isinstance(graph, TileGraph)
        plain |= {"config_feat"}
        normalizers = arrays["config_runtime_normalizers"]
        np.testing.assert_array_equal(graph.runtime_normalizers, normalizers)
    for name in plain:
        assert getattr(graph, name).tobytes() == np.ascontiguousarray(arrays[name]).tobytes()
    assert isinstance(graph, LayoutGraph | TileGraph)
    np.testing.assert_array_equal(graph.runtime_ns, arrays["config_runtime"])


def check_groups(tensors: Any, configs: NDArray[np.float32], runtime_ns: NDArray[np.int64]) -> None:
    """Check the groups of equal configs against a dict of rows."""
    rows: dict[bytes, list[int]] = {}
    for row, config in enumerate(configs):
        rows.setdefault((config + np.float32(0)).tobytes(), []).append(row)
    groups = list(rows.values())
    group_of = {row: number for number, group in enumerate(groups) for row in group}
    times = [[int(runtime_ns[row]) for row in group] for group in groups]
    assert tensors["group_first"].tolist() == [group[0] for group in groups]
    assert tensors["group_of"].tolist() == [group_of[row] for row in range(len(configs))]
    assert tensors["group_mean_ns"].tolist() == [sum(group) / len(group) for group in times]
    assert tensors["group_min_ns"].tolist() == [min(group) for group in times]
    assert tensors["group_median_ns"].tolist() == [statistics.median(group) for group in times]
    spread = [max(group) / min(group) - 1 if min(group) else 0 for group in times]
    np.testing.assert_allclose(tensors["group_spread"], spread, rtol=1e-12, atol=0)


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_a_real_graph_comes_back_exactly(file: GraphFile, tmp_path: Path) -> None:
    check_stored(file, tmp_path)


def test_the_graphs_of_a_made_tree_come_back_exactly(tiny_tree: Path, tmp_path: Path) -> None:
    for file in find_graphs(tiny_tree):
        check_stored(file, tmp_path)


def test_the_graphs_of_the_sample_come_back_exactly(tmp_path: Path) -> None:
    for file in find_graphs(SAMPLE):
        check_stored(file, tmp_path)


def test_rows_are_read_in_any_order_and_stay_where_they_are(
    layout_graph: LayoutGraph, tmp_path: Path
) -> None:
    graph = read_graph(packed(layout_graph.file, tmp_path))
    assert isinstance(graph, LayoutGraph) and isinstance(graph.configs, PackedConfigs)
    with np.load(layout_graph.file.path) as archive:
        floats = archive["node_config_feat"]
    rng = np.random.default_rng(0)
    for n_rows in (0, 1, 2, 7):
        index = rng.integers(graph.n_configs, size=n_rows)
        assert graph.configs.rows(index).tolist() == floats[index].tolist()
    for values in (graph.node_feat, graph.configs.indices):
        assert isinstance(base_of(values), mmap)  # in the file: a few rows cost a few pages


def base_of(values: Any) -> object:
    """Return what an array is a view of, in the end."""
    while isinstance(values, np.ndarray | memoryview):
        values = values.obj if isinstance(values, memoryview) else values.base
    return values


@pytest.mark.parametrize("chunk_bytes", [1, 5000, 1536 << 10])
def test_chunks_change_no_byte(
    chunk_bytes: int, layout_graph: LayoutGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = layout_graph.file
    want = packed(source, tmp_path / "want").path.read_bytes()
    monkeypatch.setattr(data.packing.npz_graphs, "CONFIG_CHUNK_BYTES", chunk_bytes)
    stored = stored_file(tmp_path / "got", source)
    store_graph(source, stored)
    assert stored.path.read_bytes() == want


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
