"""Configs and runtimes of tuned modules, as the dataset stores them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import N_LAYOUT_VALUES
from data.graphs.node_columns import RANK_MAX
from data.hlo.node_features import sequence_features

TENSORS_MAX = N_LAYOUT_VALUES // RANK_MAX
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
# A runtime is real above this; of a kernel that did not run, 1 ns is reported.
NO_RUNTIME_NS = {"layout": 0, "tile": 1}
CONFIG_KINDS = {"module_config": "layout", "op_config": "tile"}


@dataclass(frozen=True)
class TunedConfigs:
    """The runs of one module that succeeded."""

    kind: str  # "layout" or "tile"
    arrays: dict[str, NDArray[Any]]  # the config arrays of the dataset's files, by key
    n_failed: int  # runs left out: compile errors, and runs without a runtime
    run_numbers: NDArray[np.int64]  # (c,) int64, which of the file's runs each config is


def tuned_configs(entry: Any, n_nodes: int, source: str) -> TunedConfigs:
    """Turn the runs of a ModuleTuningData into config arrays.

    Returns:
        For layouts node_config_feat (c, k, 18) float32, node_config_ids (k,) int64 and
        config_runtime (c,) int64; for tiles config_feat (c, 24) float32, config_runtime and
        config_runtime_normalizers (c,) int64.

    Raises:
        PipelineError: no run succeeded, or runs and module do not fit each other.
    """
    kinds = {run.WhichOneof("config") for run in entry.runs}
    if len(kinds) != 1 or not kinds <= set(CONFIG_KINDS):
        raise PipelineError(
            f"{source}: {len(entry.runs)} runs, not all of layout or all of tile configs; "
            "expected one kind"
        )
    kind = CONFIG_KINDS[kinds.pop()]
    succeeded = [
        not run.error and run.profile.compute_time_ns > NO_RUNTIME_NS[kind] for run in entry.runs
    ]
    good = list(compress(entry.runs, succeeded))
    if not good:
        raise PipelineError(
            f"{source}: none of {len(entry.runs)} runs succeeded; expected at least one"
        )
    runtime_ns = np.array([run.profile.compute_time_ns for run in good], dtype=np.int64)
    if kind == "layout":
        arrays = _layout_arrays(entry, good, n_nodes, source)
    else:
        arrays = _tile_arrays(good, runtime_ns, source)
    arrays["config_runtime"] = runtime_ns
    return TunedConfigs(kind, arrays, len(entry.runs) - len(good), np.flatnonzero(succeeded))


def _layout_arrays(
    entry: Any, runs: Sequence[Any], n_nodes: int, source: str
) -> dict[str, NDArray[Any]]:
    ids = list(entry.config_index_to_node)
    if not ids or len(set(ids)) < len(ids) or max(ids) >= n_nodes:
        raise PipelineError(
            f"{source}: config_index_to_node names {len(ids)} nodes; expected at least one, "
            f"each once, of 0..{n_nodes - 1}"
        )
    layouts = [run.module_config.layout_config.nodes for run in runs]
    for nodes in layouts:  # before room is made for as many of each run
        if len(nodes) != len(ids):
            raise PipelineError(
                f"{source}: a run gives layouts to {len(nodes)} nodes; expected {len(ids)}"
            )
    configs = np.full((len(runs), len(ids), TENSORS_MAX, RANK_MAX), -1, dtype=np.int64)
    for nodes, values in zip(layouts, configs, strict=True):
        for node, node_values in zip(nodes, values, strict=True):
            if len(node.tensors) > TENSORS_MAX:
                raise PipelineError(
                    f"{source}: a config lays out {len(node.tensors)} tensors of one node; "
                    f"expected at most {TENSORS_MAX}"
                )
            for tensor, tensor_values in zip(node.tensors, node_values, strict=False):
                order = tensor.dims[:RANK_MAX]
                tensor_values[: len(order)] = order
    if configs.min() < -1 or configs.max() >= RANK_MAX:
        raise PipelineError(
            f"{source}: a config holds dimension numbers {configs.min()}..{configs.max()}; "
            f"expected -1..{RANK_MAX - 1}"
        )
    return {
        "node_config_feat": configs.reshape(len(runs), len(ids), -1).astype(np.float32),
        "node_config_ids": np.array(ids, dtype=np.int64),
    }


def _tile_arrays(
    runs: Sequence[Any], runtime_ns: NDArray[np.int64], source: str
) -> dict[str, NDArray[Any]]:
    default = next((run for run in runs if run.is_default), None)
    if default is None:
        raise PipelineError(
            f"{source}: no run of the default config succeeded; expected one, to normalize by"
        )
    configs = [
        [value for field in TILE_BOUNDS for value in tile_bounds(getattr(tile, field))]
        for tile in (run.op_config.tile_size_config for run in runs)
    ]
    return {
        "config_feat": np.array(configs, dtype=np.int64).astype(np.float32),
        "config_runtime_normalizers": np.full_like(runtime_ns, default.profile.compute_time_ns),
    }


def tile_bounds(sizes: Sequence[int]) -> list[int]:
    """Return six sizes padded with 0, their sum and their product; of an empty list all are 0."""
    return sequence_features(sizes, RANK_MAX) if sizes else [0] * (RANK_MAX + 2)
