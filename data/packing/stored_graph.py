"""A graph of the store: its tensors by name, and the graph that is read from them.

n nodes, e edges, c configs of k configurable nodes in m columns, u distinct layout vectors, d
distinct configs.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.distinct import RuntimeGroups
from data.errors import PipelineError
from data.graph import Graph, LayoutGraph, TileGraph
from data.packing.configs import PackedConfigs
from data.packing.spool import Alphabets
from data.packing.tensor_file import TensorFile, open_tensors
from data.tree import GraphFile

STORE_SUFFIX = ".safetensors"
VERSION = "1"  # of what the files hold; another one makes them anew
SHARED = ("node_feat", "node_opcode", "edge_index", "runtime_ns")
LAYOUT = (*SHARED, "node_config_ids", "node_splits")
TILE = (*SHARED, "config_feat", "runtime_normalizers")


def read_stored(file: GraphFile) -> Graph:
    """Read a graph of the store; its arrays are views of the mapped file, and read-only.

    Raises:
        PipelineError: the file is damaged, or was written by another version.
    """
    opened = open_tensors(file.path)
    if opened.facts.get("version") != VERSION:
        given = opened.facts.get("version")
        raise PipelineError(f"{file.path}: is of store version {given}; expected {VERSION}")
    try:
        return _layout(file, opened) if file.collection.kind == "layout" else _tile(file, opened)
    except KeyError as error:
        raise PipelineError(f"{file.path}: damaged: tensor {error} is missing") from error


def _layout(file: GraphFile, opened: TensorFile) -> LayoutGraph:
    tensors = opened.tensors
    alphabets = Alphabets(
        codes=tensors["vector_codes"],
        column_of=tensors["column_of"],
        vectors=tensors["column_vectors"],
        sizes=tensors["column_sizes"],
    )
    configs = PackedConfigs(alphabets, tensors["config_indices"], tensors["config_hashes"])
    return LayoutGraph(file=file, configs=configs, **{name: tensors[name] for name in LAYOUT})


def _tile(file: GraphFile, opened: TensorFile) -> TileGraph:
    return TileGraph(file=file, **{name: opened.tensors[name] for name in TILE})


def alphabet_tensors(alphabets: Alphabets) -> dict[str, NDArray[Any]]:
    """Return what says how config indices are to be read."""
    return {
        "vector_codes": alphabets.codes,
        "column_of": alphabets.column_of,
        "column_vectors": alphabets.vectors,
        "column_sizes": alphabets.sizes,
    }


def group_tensors(groups: RuntimeGroups) -> dict[str, NDArray[Any]]:
    """Return the groups of equal configs, and the runtimes of each group."""
    return {
        "group_first": groups.first,
        "group_of": groups.group,
        "group_mean_ns": groups.mean_ns,
        "group_median_ns": groups.median_ns,
        "group_min_ns": groups.min_ns,
        "group_spread": groups.spread,
    }


def column_tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the least and greatest value of each column of node_feat, (140,) each."""
    node_feat = arrays["node_feat"]
    return {"node_feat_low": node_feat.min(axis=0), "node_feat_high": node_feat.max(axis=0)}


def as_written(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return tensors in the row order in which they are written."""
    return {name: np.ascontiguousarray(values) for name, values in tensors.items()}
