"""Files of the official format that hold some of a graph's configs, or other runtimes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.graphs.distinct import distinct_configs
from data.graphs.graph import LayoutGraph
from data.npz.write import write_npz
from data.tree import GraphFile


def write_configs(
    graph: LayoutGraph, distinct: NDArray[np.int64], folder: Path, split: str
) -> GraphFile:
    """Write the graph with every row of some of its distinct configs, in their old order.

    Args:
        distinct: (d,) int64 numbers of distinct configs, as `distinct_configs` counts them.
        folder: where npz/ goes.
        split: "train" or "valid".
    """
    _, group = distinct_configs(graph)
    rows = np.flatnonzero(np.isin(group, distinct))
    return write_rows(graph, rows, graph.runtime_ns[rows], folder, split)


def write_rows(
    graph: LayoutGraph,
    rows: NDArray[np.int64],
    runtime_ns: NDArray[np.int64],
    folder: Path,
    split: str,
) -> GraphFile:
    """Write the graph with some of its configs (r,), and their runtimes (r,)."""
    collection = graph.file.collection
    path = folder / "npz" / collection.folder / split / f"{graph.file.name}.npz"
    write_npz(
        path,
        {
            "node_feat": graph.node_feat,
            "node_opcode": graph.node_opcode,
            "edge_index": graph.edge_index,
            "node_config_feat": graph.configs.rows(rows).astype(np.float32),
            "node_config_ids": graph.node_config_ids,
            "config_runtime": runtime_ns,
            "node_splits": graph.node_splits,
        },
    )
    return GraphFile(collection, split, graph.file.name, path)
