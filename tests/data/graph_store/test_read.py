"""What is odd but legal in a file is read; plain numpy is the reference."""

from pathlib import Path

import numpy as np

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.tree import GraphFile
from tests.data.npz.damaged_archives import read_arrays, repacked


def test_unusual_but_legal_values_are_read(layout_graph: LayoutGraph, tmp_path: Path) -> None:
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
