"""The steps by which the competition's winners prepared layout files, written out plainly.

github.com/thanhhau097/google_fast_or_slow, data/data_compression.py: a file is loaded whole, pruned
to configurable nodes and what touches them, rid of repeated configs by comparing each with each,
and saved with every 6 layout values as one number in base 7. What they do only by the way (a deep
copy of all arrays) is left out. They drop repeated configs of the train split alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Three boolean matrices, c by c, exist at once.
MATRICES = 3
MAX_MATRIX_BYTES = 10 * 10**9
POWERS = 7 ** np.arange(6)


def plain_steps(path: Path, out: Path) -> None:
    """Prepare the layout file at `path` as the winners did, and save it at `out` (.npz)."""
    arrays = load(path)
    arrays = pruned(arrays)
    arrays = without_repeats(arrays)
    arrays["node_config_feat"] = in_base_7(arrays["node_config_feat"])
    np.savez_compressed(out, allow_pickle=False, **arrays)


def load(path: Path) -> Arrays:
    """Load all arrays of an npz file."""
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


def pruned(arrays: Arrays) -> Arrays:
    """Keep the nodes that share an edge with a configurable node, and those edges."""
    edges, config_ids = arrays["edge_index"], arrays["node_config_ids"]
    edges = edges[np.isin(edges, config_ids).any(axis=1)]
    kept = np.union1d(edges, config_ids)
    position = np.full(len(arrays["node_opcode"]), -1)
    position[kept] = np.arange(len(kept))
    return arrays | {
        "node_feat": arrays["node_feat"][kept],
        "node_opcode": arrays["node_opcode"][kept],
        "edge_index": position[edges],
        "node_config_ids": position[config_ids],
    }


def compares_each_with_each(n_configs: int) -> bool:
    """Tell whether the matrices of that comparison fit; else equal rows are found by sorting."""
    return MATRICES * n_configs**2 <= MAX_MATRIX_BYTES


def without_repeats(arrays: Arrays) -> Arrays:
    """Drop each config that equals an earlier one, and its runtime."""
    configs = arrays["node_config_feat"]
    rows = configs.reshape(len(configs), -1)
    find = _repeats_by_matrix if compares_each_with_each(len(configs)) else _repeats_by_sorting
    repeats = find(rows)
    return arrays | {
        "node_config_feat": np.delete(configs, repeats, axis=0),
        "config_runtime": np.delete(arrays["config_runtime"], repeats),
    }


def _repeats_by_matrix(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return which rows (c, 18 k) equal an earlier one, by a random weighted sum of each."""
    weights = np.random.default_rng(0).random(rows.shape[1])
    sums = ((rows + 2) * weights).sum(axis=1)  # + 2: no value may be 0
    is_equal = sums[None, :] == sums[:, None]
    later, _ = np.nonzero(np.tril(is_equal, -1))
    return np.unique(later)


def _repeats_by_sorting(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return which rows (c, 18 k) equal an earlier one."""
    _, first = np.unique(rows.astype(np.int8), axis=0, return_index=True)
    return np.setdiff1d(np.arange(len(rows)), first)


def in_base_7(configs: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return configs (c, k, 18) as (c, k, 3) numbers, each of 6 values -1..5."""
    digits = configs.reshape(-1, 6).astype(np.int32) + 1
    numbers = np.dot(digits, POWERS).astype(np.int32)
    return numbers.reshape(*configs.shape[:2], 3)
