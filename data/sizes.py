"""How large the splits of a tree are, by the headers of its files."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

import numpy as np

from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.npz.archive import Archive
from data.official.published import PartSize
from data.tree import GraphFile, find_graphs


def sizes_of(data_dir: Path) -> list[PartSize]:
    """Return the size of each split that a data folder holds, by the headers of its files.

    How many configs repeat another is not known from headers: none is taken to.

    Raises:
        PipelineError: a file is damaged.
    """
    parts = groupby(find_graphs(data_dir), lambda file: (file.collection, file.split))
    return [part_size(list(files)) for _, files in parts]


def part_size(files: Sequence[GraphFile]) -> PartSize:
    """Return the size of one split of a collection, by the headers of its files; see `sizes_of`."""
    return mean_size(files[0], [_shape(file) for file in files])


def mean_size(
    file: GraphFile, shapes: Sequence[tuple[int, int, int]], *, repeated: float = 0.0
) -> PartSize:
    """Return the size of the split that a file is of.

    Args:
        shapes: nodes, edges and configs of each of its graphs.
        repeated: the share of configs that repeat another of their graph.
    """
    nodes, edges, configs = zip(*shapes, strict=True)
    return PartSize(
        collection=file.collection.name,
        split=file.split,
        graphs=len(shapes),
        nodes=round(fmean(nodes)),
        most_nodes=max(nodes),
        edges=round(fmean(edges)),
        configs=round(fmean(configs)),
        most_configs=max(configs),
        repeated=repeated,
        counted_in="files",
    )


def _shape(file: GraphFile) -> tuple[int, int, int]:
    with Archive(file.path) as archive:
        nodes = archive.header("node_opcode", dtype=np.uint8, shape=(None,))
        edges = archive.header("edge_index", dtype=np.int64, shape=(None, 2))
        if file.collection.kind == "layout":
            shape: tuple[int | None, ...] = (None, None, N_LAYOUT_VALUES)
            configs = archive.header("node_config_feat", dtype=np.float32, shape=shape)
        else:
            configs = archive.header("config_feat", dtype=np.float32, shape=(None, N_TILE_VALUES))
    return nodes.shape[0], edges.shape[0], configs.shape[0]
