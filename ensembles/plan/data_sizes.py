"""The sizes of a data folder's own graphs, from the headers of its files."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from numpy.lib import format as npy

from data.errors import PipelineError
from data.official.sizes import PartSize
from data.tree import COLLECTIONS, SPLITS, GraphFile, find_graphs

CONFIGS = {"layout": "node_config_feat", "tile": "config_feat"}


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
    """Return a graph's numbers of nodes, edges and configs."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            names = ("node_opcode", "edge_index", CONFIGS[file.collection.kind])
            nodes, edges, configs = (_length(archive, name) for name in names)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise PipelineError(
            f"{file.path}: cannot be read: {error}; expected a graph's npz file; see `audit`"
        ) from error
    return nodes, edges, configs


def _length(archive: zipfile.ZipFile, name: str) -> int:
    """Return the length of an array's first axis, by its header alone."""
    with archive.open(f"{name}.npy") as stream:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return int(read(stream)[0][0])
