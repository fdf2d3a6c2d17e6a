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
    """Return the size of each split of a data folder, from the headers of its files.

    Headers do not show repeated configs, so `repeated` is 0.

    Args:
        data_dir: Folder that holds npz/.

    Raises:
        PipelineError: A file is damaged.
    """
    parts = groupby(find_graphs(data_dir), lambda file: (file.collection, file.split))
    return [_part_size(list(files)) for _, files in parts]


def _part_size(files: Sequence[GraphFile]) -> PartSize:
    nodes, edges, configs = zip(*map(_shape, files), strict=True)
    return PartSize(
        collection=files[0].collection.name,
        split=files[0].split,
        graphs=len(files),
        nodes=round(fmean(nodes)),
        most_nodes=max(nodes),
        edges=round(fmean(edges)),
        configs=round(fmean(configs)),
        most_configs=max(configs),
        repeated=0.0,
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
