"""Write measured graphs as files of the official format; the test split's runtimes apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.collect.job import Job
from data.npz.write import Member, write_npz
from data.withheld import WITHHELD, read_withheld, read_withheld_normalizers, write_withheld

NODE_KEYS = ("node_feat", "node_opcode", "edge_index")


def write_graph(
    out: Path,
    job: Job,
    *,
    arrays: Mapping[str, NDArray[Any]],
    config_feat: NDArray[Any],
    runtime_ns: NDArray[np.int64],
    default_ns: int,
) -> Path:
    """Write one graph; in the test split its runtimes go to the withheld file first.

    Args:
        arrays: what no config changes: nodes, edges and, for layouts, node_config_ids and
            node_splits.
        config_feat: (c, 24) of tiles or (c, k, 18) of layouts.
        runtime_ns: (c,) int64.
        default_ns: runtime of the compiler's own choice, the normalizer of tiles.

    Raises:
        PipelineError: the file cannot be written.
    """
    is_tile = job.collection.kind == "tile"
    normalizers = np.full_like(runtime_ns, default_ns)
    if job.split == "test":
        _withhold(out, job.submission_id, runtime_ns, normalizers if is_tile else None)
        runtime_ns, normalizers = np.zeros_like(runtime_ns), np.ones_like(normalizers)
    members: dict[str, Member] = {key: arrays[key] for key in NODE_KEYS}
    if is_tile:
        members["config_feat"] = config_feat.astype(np.float32)
        members["config_runtime"] = runtime_ns
        members["config_runtime_normalizers"] = normalizers
    else:
        members["node_config_feat"] = config_feat.astype(np.float32)
        members["node_config_ids"] = arrays["node_config_ids"]
        members["config_runtime"] = runtime_ns
        members["node_splits"] = arrays["node_splits"]
    path = job.file(out).path
    write_npz(path, members)
    return path


def _withhold(
    out: Path,
    submission_id: str,
    runtime_ns: NDArray[np.int64],
    normalizers: NDArray[np.int64] | None,
) -> None:
    """Add one graph's runtimes (c,) to the withheld file of `out`."""
    path = out / WITHHELD
    runtimes = read_withheld(out) if path.is_file() else {}
    known_normalizers = read_withheld_normalizers(out) if path.is_file() else {}
    runtimes[submission_id] = runtime_ns
    if normalizers is not None:
        known_normalizers[submission_id] = normalizers
    write_withheld(path, runtimes, normalizers=known_normalizers)
