"""Graphs are read as they are on disk; plain numpy is the reference."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.graphs.graph import LayoutGraph, TileGraph
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.read import read_graph, read_graph_at, read_layout
from data.tree import GraphFile, collection_named, find_graphs
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.real_data import REAL, real_file, real_files, requires_real_data


def check_against_numpy(file: GraphFile) -> None:
    graph = read_graph(file)
    with np.load(file.path) as archive:
        assert (graph.node_feat.dtype, graph.node_opcode.dtype) == (np.float32, np.uint8)
        assert graph.edge_index.dtype == graph.runtime_ns.dtype == np.int64
        np.testing.assert_array_equal(graph.node_feat, archive["node_feat"])
        np.testing.assert_array_equal(graph.node_opcode, archive["node_opcode"])
        np.testing.assert_array_equal(graph.edge_index, archive["edge_index"])
        np.testing.assert_array_equal(graph.runtime_ns, archive["config_runtime"])
        if isinstance(graph, LayoutGraph):
            rows = np.arange(0, graph.n_configs, 7)[::-1]
            values = graph.configs.rows(rows)
            assert values.dtype == np.int8
            np.testing.assert_array_equal(values, archive["node_config_feat"][rows])
            np.testing.assert_array_equal(graph.node_config_ids, archive["node_config_ids"])
            np.testing.assert_array_equal(graph.node_splits, archive["node_splits"])
        else:
            assert isinstance(graph, TileGraph)
            normalizers = archive["config_runtime_normalizers"]
            np.testing.assert_array_equal(graph.config_feat, archive["config_feat"])
            np.testing.assert_array_equal(graph.runtime_normalizers, normalizers)
            want = archive["config_runtime"] / normalizers
            np.testing.assert_array_equal(graph.normalized_runtime, want)
    assert graph.is_labelled == (file.split != "test")
    assert (graph.n_nodes, graph.n_configs) == (len(graph.node_feat), len(graph.runtime_ns))


def test_made_graphs_are_read_as_numpy_reads_them(tiny_tree: Path) -> None:
    for file in find_graphs(tiny_tree):
        check_against_numpy(file)


@requires_real_data
@pytest.mark.parametrize("file", real_files(), ids=lambda file: file.submission_id[:40])
def test_real_graphs_are_read_as_numpy_reads_them(file: GraphFile) -> None:
    check_against_numpy(file)


@requires_real_data
def test_the_real_counts_are_those_of_the_description() -> None:
    counts = {
        "layout:xla:default:unet3d": (2774, 4730, 1159),
        "layout:xla:default:unet_3d.4x4.bf16": (3163, 5112, 1965),
        "layout:xla:random:openai_v0_rnn_optimized": (1277, 2063, 20),
        "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba": (21918, 36278, 1001),
        "layout:nlp:random:23559853d9702baaaacbb0c83fd32266": (1096, 1688, 1000),
    }
    for submission_id, want in counts.items():
        graph = read_layout(real_file(submission_id))
        assert (graph.n_nodes, len(graph.edge_index), graph.n_configs) == want


@requires_real_data
def test_a_layout_file_is_read_in_far_less_than_its_float_size() -> None:
    file = real_file("layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba")
    with np.load(file.path) as archive:
        float_bytes = archive["node_config_feat"].nbytes
        other_bytes = archive["node_feat"].nbytes
    tracemalloc.start()
    try:
        read_layout(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # int8 configs, a chunk of 4 MiB and what the check of a chunk takes, and the node features.
    assert peak < float_bytes / 4 + 4 * (4 << 20) + 3 * other_bytes
    assert peak < float_bytes


@requires_real_data
def test_a_graph_is_placed_by_its_folders() -> None:
    path = next((REAL / "npz" / "tile" / "xla" / "valid").glob("*.npz"))
    graph = read_graph_at(path)
    assert (graph.file.collection.name, graph.file.split) == ("tile:xla", "valid")


def test_a_kernel_is_no_layout_graph(tiny_tree: Path) -> None:
    file = find_graphs(tiny_tree, collections=(collection_named("tile:xla"),))[0]
    misplaced = GraphFile(collection_named("layout:xla:random"), "train", file.name, file.path)
    with pytest.raises(PipelineError, match=r"key 'node_config_feat' is missing; .*config_feat"):
        read_graph(misplaced)


def test_what_is_odd_but_legal_is_read(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    """No edge, self-loops, one config, minus zero, -1 padding and empty computations."""
    arrays = read_arrays(layout_graph.file.path.read_bytes())
    n_nodes = layout_graph.n_nodes
    node_feat = arrays["node_feat"].copy()
    node_feat[0, MINOR_TO_MAJOR] = -1
    one_config = arrays["node_config_feat"][:1] * np.float32(0) * np.float32(-1)
    for edges in (np.empty((0, 2), np.int64), np.asarray([[3, 3], [1, 2], [1, 2]], np.int64)):
        path = tmp_path / "odd.npz"
        path.write_bytes(
            repacked(
                arrays,
                node_feat=node_feat,
                edge_index=edges,
                node_config_feat=one_config,
                config_runtime=arrays["config_runtime"][:1],
                node_splits=np.asarray([[0, 5, 5, n_nodes]]),
            )
        )
        graph = read_layout(GraphFile(layout_graph.file.collection, "train", "odd", path))
        np.testing.assert_array_equal(graph.edge_index, edges)
        assert not graph.configs.rows(np.arange(1)).any()
