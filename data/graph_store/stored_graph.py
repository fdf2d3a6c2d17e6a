"""A graph of the store: its tensors by name, and the graph that is read from them.

n nodes, e edges, c configs of k configurable nodes in m columns, u distinct layout vectors, d
distinct configs.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.tensor_file import open_tensors
from data.graphs.distinct import RuntimeGroups
from data.graphs.graph import LayoutGraph, TileGraph
from data.packing.config_encoder import Alphabets
from data.packing.configs import PackedConfigs
from data.tree import GraphFile

STORE_SUFFIX = ".safetensors"
VERSION = "1"  # of what the files hold; another one makes them anew
SHARED = ("node_feat", "node_opcode", "edge_index", "runtime_ns")
LAYOUT = (*SHARED, "node_config_ids", "node_splits")
TILE = (*SHARED, "config_feat", "runtime_normalizers")
ALPHABET = ("vector_codes", "column_of", "column_vectors", "column_sizes")
LAYOUT_TENSORS = (*LAYOUT, *ALPHABET, "config_indices", "config_hashes")


def is_stored(file: GraphFile) -> bool:
    """Tell whether a file is one of the store."""
    return file.path.suffix == STORE_SUFFIX


def read_stored_layout(file: GraphFile) -> LayoutGraph:
    """Read a layout graph of the store; its arrays are views of the mapped file, and read-only.

    Raises:
        PipelineError: the file is damaged, or was written by another version.
    """
    tensors = _opened(file, LAYOUT_TENSORS)
    alphabets = Alphabets(
        codes=tensors["vector_codes"],
        column_of=tensors["column_of"],
        vectors=tensors["column_vectors"],
        sizes=tensors["column_sizes"],
    )
    configs = PackedConfigs(alphabets, tensors["config_indices"], tensors["config_hashes"])
    return LayoutGraph(file=file, configs=configs, **{name: tensors[name] for name in LAYOUT})


def read_stored_tile(file: GraphFile) -> TileGraph:
    """Read a kernel of the store; its arrays are views of the mapped file, and read-only.

    Raises:
        PipelineError: the file is damaged, or was written by another version.
    """
    tensors = _opened(file, TILE)
    return TileGraph(file=file, **{name: tensors[name] for name in TILE})


def _opened(file: GraphFile, needed: Iterable[str]) -> Mapping[str, NDArray[Any]]:
    opened = open_tensors(file.path)
    version = opened.facts.get("version")
    if version != VERSION:
        raise PipelineError(f"{file.path}: is of store version {version}; expected {VERSION}")
    for name in needed:
        if name not in opened.tensors:
            raise PipelineError(f"{file.path}: damaged: tensor '{name}' is missing")
    return opened.tensors


def alphabet_tensors(alphabets: Alphabets) -> dict[str, NDArray[Any]]:
    """Return what says how config indices are to be read."""
    parts = (alphabets.codes, alphabets.column_of, alphabets.vectors, alphabets.sizes)
    return dict(zip(ALPHABET, parts, strict=True))


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
