"""Read one graph into memory, from a file of the official tree or of the store."""

from pathlib import Path

from data.graph_store.stored_graph import is_stored, read_stored_layout, read_stored_tile
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.npz.read import Archive
from data.packing.npz_graphs import encode_configs, layout_arrays, tile_arrays
from data.tree import GraphFile, file_from_path


def read_graph(file: GraphFile) -> Graph:
    """Read the graph of a file of the official tree, or of the store.

    Raises:
        PipelineError: one line that names the file, the key and what was expected.
    """
    return read_layout(file) if file.collection.kind == "layout" else read_tile(file)


def read_graph_at(path: Path) -> Graph:
    """Read the graph at `path`, whose collection and split are told by its folders.

    Raises:
        PipelineError: as `read_graph`, or the folders do not tell the collection.
    """
    return read_graph(file_from_path(path))


def read_layout(file: GraphFile) -> LayoutGraph:
    """Read a layout graph, from its npz file or from the store.

    Raises:
        PipelineError: one line that names the file, the key and what was expected.
    """
    if is_stored(file):
        return read_stored_layout(file)
    with Archive(file.path) as archive:
        arrays = layout_arrays(archive)
        n_configs, n_configurable = len(arrays["runtime_ns"]), len(arrays["node_config_ids"])
        configs = encode_configs(archive, n_configs, n_configurable)
    return LayoutGraph(file=file, configs=configs, **arrays)


def read_tile(file: GraphFile) -> TileGraph:
    """Read a tile kernel, from its npz file or from the store.

    Raises:
        PipelineError: one line that names the file, the key and what was expected.
    """
    if is_stored(file):
        return read_stored_tile(file)
    with Archive(file.path) as archive:
        return TileGraph(file=file, **tile_arrays(archive))
