"""A small tree of layout graphs whose configs repeat, submissions for it, and an official one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_LAYOUT_VALUES, N_NODE_FEATURES
from submissions.check import SubmissionRow, official_rows, write_submission

Indices = NDArray[np.int64]
N_NODES, N_CONFIGURABLE = 6, 3
SHORT_TILE_KERNELS = [2] * 2 + [3] * 8 + [4] * 6  # numbers of configs


def ints(*values: int) -> Indices:
    return np.array(values, np.int64)


def write_graph(
    folder: Path, collection: str, split: str, name: str, *, seed: int, labelled: bool = True
) -> tuple[Indices, Indices]:
    """Write a layout graph with 60 configs, 25 of them distinct, below `folder`.

    Returns:
        runtime_ns: (60,) int64 runtimes with noise. The file has zeros if `labelled` is false.
        group: (60,) int64 numbers of the distinct configs.
    """
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(25), rng.integers(0, 25, 35)])
    distinct = rng.integers(-1, 6, (25, N_CONFIGURABLE, N_LAYOUT_VALUES)).astype(np.float32)
    truth = rng.normal(0, 1, 25)
    runtime_ns = np.round(1e6 * np.exp(truth[group] + rng.normal(0, 0.3, 60))).astype(np.int64)
    place_npz(
        *(folder, f"{collection.replace(':', '/')}/{split}", name),
        node_feat=np.zeros((N_NODES, N_NODE_FEATURES), np.float32),
        node_opcode=np.arange(1, N_NODES + 1, dtype=np.uint8),
        edge_index=np.stack([np.arange(1, N_NODES), np.arange(N_NODES - 1)], axis=1),
        node_config_feat=distinct[group],
        node_config_ids=np.arange(N_CONFIGURABLE),
        config_runtime=runtime_ns if labelled else np.zeros(60, np.int64),
        node_splits=np.array([[0, N_NODES]]),
    )
    return runtime_ns, group


def place_npz(folder: Path, place: str, name: str, **arrays: NDArray[np.generic]) -> Path:
    """Write the arrays of a graph to `name`.npz in the folder of a collection and split."""
    path = folder / "npz" / place / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def noisy_submission(path: Path, runtimes: Mapping[str, Indices], *, seed: int) -> Path:
    """Write a submission that ranks each graph by its runtimes and some noise."""
    rng = np.random.default_rng(seed)
    rows = [
        SubmissionRow(name, np.argsort(np.log(runtime_ns) + rng.normal(0, 0.5, len(runtime_ns))))
        for name, runtime_ns in runtimes.items()
    ]
    write_submission(path, rows)
    return path


def official_lines() -> list[str]:
    """Return 894 rows that the real competition would take: which kernels are short is made up."""
    short = list(SHORT_TILE_KERNELS)
    lines = []
    for submission_id, n_configs in official_rows().items():
        count = n_configs or (short.pop() if short else 5)
        lines.append(f"{submission_id},{';'.join(map(str, range(count)))}")
    return lines


def write_official(path: Path, lines: list[str] | None = None) -> Path:
    """Write a submission of these rows, by default those of `official_lines`."""
    path.write_text("\n".join(["ID,TopConfigs", *(lines or official_lines())]) + "\n")
    return path
