"""Read the npz file of one graph as the fields of a typed graph, and check every value.

The dtypes are those of real files: `edge_index` and runtimes are int64, opcodes uint8,
`node_splits` has shape (1, s). Configs are packed while they are read, so the float32 array of
several GB never exists.
"""

from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import LAYOUT, N_LAYOUT_VALUES, TILE, Schema, check_layout, check_tile
from data.graphs.packing import (
    HIGHEST,
    LOWEST,
    ConfigEncoder,
    PackedConfigs,
    UnknownValueError,
    chunk_bytes,
)
from data.npz.archive import Archive

SHARED_KEYS = ("node_feat", "node_opcode", "edge_index")
_OF_LAYOUTS = ("node_config_feat", "node_config_ids", "config_runtime", "node_splits")
LAYOUT_KEYS = (*SHARED_KEYS, *_OF_LAYOUTS)
TILE_KEYS = (*SHARED_KEYS, "config_feat", "config_runtime", "config_runtime_normalizers")
# The arrays of a module without configs can be compared, but there is nothing to rank.
KEYS_OF = {"layout": LAYOUT_KEYS, "tile": TILE_KEYS, "module": (*SHARED_KEYS, "node_splits")}
KEYS = {"runtime_ns": "config_runtime", "runtime_normalizers": "config_runtime_normalizers"}


def graph_arrays(archive: Archive, kind: str) -> dict[str, NDArray[Any]]:
    """Read and check the fields of a TileGraph, or of a LayoutGraph except its configs."""
    is_layout = kind == "layout"
    if set(archive.keys) == set(KEYS_OF["module"]):
        raise PipelineError(
            f"{archive.path}: was made from a module and has no configs; rank the module itself, "
            "with --candidates"
        )
    archive.require(KEYS_OF[kind])
    arrays = read_fields(archive, LAYOUT if is_layout else TILE)
    (check_layout if is_layout else check_tile)(arrays, partial(fail_field, archive))
    return arrays


def read_fields(archive: Archive, schema: Schema) -> dict[str, NDArray[Any]]:
    """Read the arrays of a schema. Axes with the same letter must have equal lengths."""
    arrays, lengths = dict[str, NDArray[Any]](), dict[str | int, int]()
    for field, (dtype, axes) in schema.items():
        shape = tuple(axis if isinstance(axis, int) else lengths.get(axis) for axis in axes)
        arrays[field] = archive.array(KEYS.get(field, field), dtype=dtype, shape=shape)
        lengths |= zip(axes, arrays[field].shape, strict=True)
    return arrays


def fail_field(archive: Archive, field: str, problem: str) -> NoReturn:
    """Raise the error that names the file and the key of a field."""
    archive.fail(KEYS.get(field, field), problem)


def encode_configs(archive: Archive, n_configs: int, n_configurable: int) -> PackedConfigs:
    """Pack the configs of an npz file while they are read."""
    key = "node_config_feat"
    shape = (n_configs, n_configurable, N_LAYOUT_VALUES)
    encoder, at_once = ConfigEncoder(n_configurable), chunk_bytes(n_configurable)
    chunks = archive.rows(key, dtype=np.float32, shape=shape, chunk_bytes=at_once)
    try:
        # One core does all: moving chunks to the cache of another one takes longer than packing.
        for content in chunks:
            encoder.add(content)
            del content  # the next chunk reuses its memory, which is in the cache
        return encoder.packed()
    except UnknownValueError as unknown:
        row, node = divmod(unknown.vector, n_configurable)
        archive.fail(
            key,
            f"config {row}, node {node}, value {unknown.place} is {unknown.value}; "
            f"expected a whole number {LOWEST}..{HIGHEST}",
        )
