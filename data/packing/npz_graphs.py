"""Read one graph's npz file into a typed, validated graph.

The checks are those of the files as they really are on disk: `edge_index` and runtimes are int64,
opcodes uint8, `node_splits` has shape (1, s). Configs are packed as they stream by, so the file's
float32 array, which may have several GB, never exists.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import (
    N_LAYOUT_VALUES,
    N_NODE_FEATURES,
    N_TILE_VALUES,
)
from data.npz.read import Archive
from data.packing.config_encoder import ConfigEncoder
from data.packing.spool_rows import spool_rows
from data.packing.vectors import HIGHEST, LOWEST, UnknownValueError

SHARED_KEYS = ("node_feat", "node_opcode", "edge_index")
LAYOUT_KEYS = (
    *SHARED_KEYS,
    "node_config_feat",
    "node_config_ids",
    "config_runtime",
    "node_splits",
)
TILE_KEYS = (*SHARED_KEYS, "config_feat", "config_runtime", "config_runtime_normalizers")
CONFIG_CHUNK_BYTES = 512 << 10  # small enough for a core's cache
NODE_LAYOUT = slice(134, 140)  # the columns of node_feat that hold minor-to-major orders


def layout_arrays(archive: Archive) -> dict[str, NDArray[Any]]:
    """Read and check all of a layout graph but its configs, as the fields of LayoutGraph.

    Raises:
        PipelineError: names the key and what was expected; a missing key comes first.
    """
    archive.require(LAYOUT_KEYS)
    shared = _read_nodes_and_edges(archive)
    n_nodes = len(shared["node_opcode"])
    runtime_ns = _read_runtime(archive)
    config_ids = archive.array("node_config_ids", dtype=np.int64, shape=(None,))
    _check_config_ids(archive, config_ids, n_nodes)
    splits = archive.array("node_splits", dtype=np.int64, shape=(1, None))
    _check_splits(archive, splits, n_nodes)
    found = {"runtime_ns": runtime_ns, "node_config_ids": config_ids, "node_splits": splits}
    return shared | found


def tile_arrays(archive: Archive) -> dict[str, NDArray[Any]]:
    """Read and check a tile kernel, as the fields of TileGraph.

    Raises:
        PipelineError: names the key and what was expected; a missing key comes first.
    """
    archive.require(TILE_KEYS)
    shared = _read_nodes_and_edges(archive)
    runtime_ns = _read_runtime(archive)
    n_configs = len(runtime_ns)
    config_feat = archive.array("config_feat", dtype=np.float32, shape=(n_configs, N_TILE_VALUES))
    _check_finite(archive, "config_feat", config_feat)
    key = "config_runtime_normalizers"
    normalizers = archive.array(key, dtype=np.int64, shape=(n_configs,))
    if (normalizers <= 0).any():
        row = int(np.argmax(normalizers <= 0))
        archive.fail(key, f"row {row} is {normalizers[row]}; expected a runtime above 0")
    found = {"runtime_ns": runtime_ns, "config_feat": config_feat}
    return shared | found | {"runtime_normalizers": normalizers}


def _read_nodes_and_edges(archive: Archive) -> dict[str, NDArray[Any]]:
    """Read and check node_feat (n, 140), node_opcode (n,) and edge_index (e, 2)."""
    opcode = archive.array("node_opcode", dtype=np.uint8, shape=(None,))
    n_nodes = len(opcode)
    if n_nodes == 0:
        archive.fail("node_opcode", "is empty; expected at least one node")
    node_feat = archive.array("node_feat", dtype=np.float32, shape=(n_nodes, N_NODE_FEATURES))
    _check_finite(archive, "node_feat", node_feat)
    _check_node_layouts(archive, node_feat[:, NODE_LAYOUT])
    edges = archive.array("edge_index", dtype=np.int64, shape=(None, 2))
    outside = ((edges < 0) | (edges >= n_nodes)).any(axis=1)
    if outside.any():
        row = int(np.argmax(outside))
        archive.fail(
            "edge_index",
            f"row {row} is {edges[row].tolist()}; expected node positions 0..{n_nodes - 1}",
        )
    return {"node_feat": node_feat, "node_opcode": opcode, "edge_index": edges}


def _read_runtime(archive: Archive) -> NDArray[np.int64]:
    """Read config_runtime (c,): all positive, or all 0 where runtimes are withheld."""
    runtime_ns = archive.array("config_runtime", dtype=np.int64, shape=(None,))
    if len(runtime_ns) == 0:
        archive.fail("config_runtime", "has zero configs; expected at least one")
    bad = runtime_ns < 0 if not runtime_ns.any() else runtime_ns <= 0
    if bad.any():
        row = int(np.argmax(bad))
        archive.fail(
            "config_runtime",
            f"row {row} is {runtime_ns[row]}; expected runtimes all above 0, or all 0 (withheld)",
        )
    return runtime_ns


def encode_configs(archive: Archive, n_configs: int, spool: ConfigEncoder) -> None:
    """Stream node_config_feat (c, k, 18) into a spool, checking every value.

    Raises:
        PipelineError: damaged, of another shape, or a value that is no layout value.
    """
    key = "node_config_feat"
    shape = (n_configs, spool.n_configurable, N_LAYOUT_VALUES)
    with archive.rows(key, dtype=np.float32, shape=shape, chunk_bytes=CONFIG_CHUNK_BYTES) as rows:
        try:
            spool_rows(rows, spool)
        except UnknownValueError as unknown:
            row, node = divmod(unknown.vector, spool.n_configurable)
            archive.fail(
                key,
                f"config {spool.n_configs + row}, node {node}, value {unknown.place} is "
                f"{unknown.value}; expected a whole number {LOWEST}..{HIGHEST}",
            )


def _check_finite(archive: Archive, key: str, values: NDArray[np.float32]) -> None:
    if not np.isfinite(values).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        archive.fail(
            key, f"row {row}, column {column} is {values[row, column]}; expected a finite number"
        )


def _check_node_layouts(archive: Archive, layouts: NDArray[np.float32]) -> None:
    """Check the layout part of node_feat: dimension numbers, padded with 0 or -1."""
    low, high = LOWEST, HIGHEST
    good = (layouts >= low) & (layouts <= high) & (layouts == np.rint(layouts))
    if not good.all():
        row, place = (int(i) for i in np.argwhere(~good)[0])
        archive.fail(
            "node_feat",
            f"row {row}, column {NODE_LAYOUT.start + place} is {layouts[row, place]}; "
            f"expected a dimension number {low}..{high}",
        )


def _check_config_ids(archive: Archive, ids: NDArray[np.int64], n_nodes: int) -> None:
    key = "node_config_ids"
    if len(ids) == 0:
        archive.fail(key, "is empty; expected at least one configurable node")
    outside = (ids < 0) | (ids >= n_nodes)
    if outside.any():
        place = int(np.argmax(outside))
        archive.fail(
            key, f"entry {place} is {ids[place]}; expected node positions 0..{n_nodes - 1}"
        )
    if len(np.unique(ids)) != len(ids):
        archive.fail(key, "names a node twice; expected each configurable node once")


def _check_splits(archive: Archive, splits: NDArray[np.int64], n_nodes: int) -> None:
    bounds = splits[0]
    grows = (np.diff(bounds) >= 0).all()
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != n_nodes or not grows:
        archive.fail(
            "node_splits",
            f"is {bounds[:8].tolist()}…; expected boundaries from 0 to {n_nodes}, ascending",
        )
