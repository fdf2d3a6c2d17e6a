"""Read the npz file of one graph, as the fields of a typed graph, and check every value.

The dtypes are those of the files as they really are on disk: `edge_index` and runtimes are int64,
opcodes uint8, `node_splits` has shape (1, s). Configs are packed as they stream by, so the file's
float32 array, which may have several GB, never exists.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from data.graphs.checks import check_layout, check_tile
from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES, N_TILE_VALUES
from data.npz.read import Archive
from data.packing.config_encoder import ConfigEncoder, chunk_bytes
from data.packing.configs import Fail, PackedConfigs
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
KEYS = {"runtime_ns": "config_runtime", "runtime_normalizers": "config_runtime_normalizers"}


def layout_arrays(archive: Archive) -> dict[str, NDArray[Any]]:
    """Read and check all of a layout graph but its configs, as the fields of LayoutGraph.

    Raises:
        PipelineError: names the key and what was expected; a missing key comes first.
    """
    archive.require(LAYOUT_KEYS)
    arrays = _shared_arrays(archive)
    arrays["node_config_ids"] = archive.array("node_config_ids", dtype=np.int64, shape=(None,))
    arrays["node_splits"] = archive.array("node_splits", dtype=np.int64, shape=(1, None))
    check_layout(arrays, _naming_keys(archive))
    return arrays


def are_one_program(paths: Iterable[Path]) -> bool:
    """Tell whether layout files hold the same nodes, edges and configurable nodes, bit by bit.

    Raises:
        PipelineError: a file is damaged.
    """
    first: list[bytes] = []
    for path in paths:
        with Archive(path) as archive:
            found = [
                archive.array("node_opcode", dtype=np.uint8, shape=(None,)),
                archive.array("node_config_ids", dtype=np.int64, shape=(None,)),
                archive.array("edge_index", dtype=np.int64, shape=(None, 2)),
                archive.array("node_feat", dtype=np.float32, shape=(None, N_NODE_FEATURES)),
            ]
        content = [array.tobytes() for array in found]
        if content != (first or content):
            return False
        first = content
    return True


def tile_arrays(archive: Archive) -> dict[str, NDArray[Any]]:
    """Read and check a tile kernel, as the fields of TileGraph.

    Raises:
        PipelineError: names the key and what was expected; a missing key comes first.
    """
    archive.require(TILE_KEYS)
    arrays = _shared_arrays(archive)
    c = len(arrays["runtime_ns"])
    shape = (c, N_TILE_VALUES)
    arrays["config_feat"] = archive.array("config_feat", dtype=np.float32, shape=shape)
    key = KEYS["runtime_normalizers"]
    arrays["runtime_normalizers"] = archive.array(key, dtype=np.int64, shape=(c,))
    check_tile(arrays, _naming_keys(archive))
    return arrays


def _shared_arrays(archive: Archive) -> dict[str, NDArray[Any]]:
    opcode = archive.array("node_opcode", dtype=np.uint8, shape=(None,))
    n_nodes = len(opcode)
    if n_nodes == 0:
        archive.fail("node_opcode", "is empty; expected at least one node")
    shape = (n_nodes, N_NODE_FEATURES)
    return {
        "node_opcode": opcode,
        "node_feat": archive.array("node_feat", dtype=np.float32, shape=shape),
        "edge_index": archive.array("edge_index", dtype=np.int64, shape=(None, 2)),
        "runtime_ns": archive.array("config_runtime", dtype=np.int64, shape=(None,)),
    }


def _naming_keys(archive: Archive) -> Fail:
    def fail(field: str, problem: str) -> NoReturn:
        archive.fail(KEYS.get(field, field), problem)

    return fail


def encode_configs(archive: Archive, n_configs: int | None, n_configurable: int) -> PackedConfigs:
    """Pack node_config_feat (c, k, 18) as it streams by, checking every value.

    Raises:
        PipelineError: damaged, of another shape, or a value that is no layout value.
    """
    key = "node_config_feat"
    shape = (n_configs, n_configurable, N_LAYOUT_VALUES)
    if not archive.header(key, dtype=np.float32, shape=shape).shape[0]:
        archive.fail(key, "has zero configs; expected at least one")
    encoder, at_once = ConfigEncoder(n_configurable), chunk_bytes(n_configurable)
    chunks = archive.rows(key, dtype=np.float32, shape=shape, chunk_bytes=at_once)
    try:
        # On one core: handing chunks to another one's cache takes longer than packing them here.
        for content in chunks:
            encoder.add(content)
            del content  # so that the next one takes its memory, which is in the cache
        return encoder.packed()
    except UnknownValueError as unknown:
        row, node = divmod(unknown.vector, n_configurable)
        archive.fail(
            key,
            f"config {row}, node {node}, value {unknown.place} is {unknown.value}; "
            f"expected a whole number {LOWEST}..{HIGHEST}",
        )
