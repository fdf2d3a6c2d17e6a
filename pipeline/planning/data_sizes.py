"""The sizes of a data folder's own graphs, from the headers of its files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.npz.read import Archive
from data.official.sizes import PartSize
from data.tree import COLLECTIONS, SPLITS, GraphFile, find_graphs


def sizes_of(data_dir: Path) -> list[PartSize]:
    """Return the size of each split that a data folder holds.

    How many configs repeat another is not known from headers: none is taken to.

    Raises:
        PipelineError: a file is damaged.
    """
    files = find_graphs(data_dir)
    parts = []
    for collection in COLLECTIONS:
        for split in SPLITS:
            own = [f for f in files if f.collection == collection and f.split == split]
            if own:
                parts.append(_part_size(own))
    return parts


def _part_size(files: Sequence[GraphFile]) -> PartSize:
    shapes = [_shape(file) for file in files]
    nodes, edges, configs = zip(*shapes, strict=True)
    return PartSize(
        collection=files[0].collection.name,
        split=files[0].split,
        graphs=len(files),
        nodes=round(sum(nodes) / len(files)),
        most_nodes=max(nodes),
        edges=round(sum(edges) / len(files)),
        configs=round(sum(configs) / len(files)),
        most_configs=max(configs),
        repeated=0.0,
        counted_in="files",
    )


def _shape(file: GraphFile) -> tuple[int, int, int]:
    """Return a graph's numbers of nodes, edges and configs, by the headers of its arrays."""
    with Archive(file.path) as archive:
        nodes = archive.header("node_opcode", dtype=np.uint8, shape=(None,))
        edges = archive.header("edge_index", dtype=np.int64, shape=(None, 2))
        if file.collection.kind == "layout":
            shape: tuple[int | None, ...] = (None, None, N_LAYOUT_VALUES)
            configs = archive.header("node_config_feat", dtype=np.float32, shape=shape)
        else:
            configs = archive.header("config_feat", dtype=np.float32, shape=(None, N_TILE_VALUES))
    return nodes.shape[0], edges.shape[0], configs.shape[0]
