"""Read one graph into memory, from a file of the official tree or of the store."""

from collections.abc import Mapping
from typing import Any

from data.graph_store.stored_graph import configs_of, graph_tensors
from data.graphs.graph import LAYOUT, TILE, Graph, LayoutGraph, TileGraph
from data.tree import GraphFile


def read_graph(file: GraphFile) -> Graph:
    """Read a graph from the tree or the store; PipelineError: names the file, the key, and why."""
    return read_layout(file) if file.collection.kind == "layout" else read_tile(file)


def read_layout(file: GraphFile) -> LayoutGraph:
    """Read a layout graph; raises as `read_graph`."""
    tensors: Mapping[str, Any] = graph_tensors(file)
    fields = {name: tensors[name] for name in LAYOUT}
    return LayoutGraph(file=file, configs=configs_of(tensors), **fields)


def read_tile(file: GraphFile) -> TileGraph:
    """Read a tile kernel; raises as `read_graph`."""
    tensors: Mapping[str, Any] = graph_tensors(file)
    return TileGraph(file=file, **{name: tensors[name] for name in TILE})
