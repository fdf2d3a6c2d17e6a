"""Which train graphs have runtimes to learn from, and the withheld runtimes of test splits.

A made or measured tree has the runtimes of its test split in a file outside npz/, as the real
dataset has.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.atomic import atomic_path
from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, distinct_configs, group_means
from data.npz.archive import Archive
from data.tree import GraphFile

WITHHELD = Path("private") / "test_runtimes.npz"
_NORMALIZER = "normalizer/"


class Unusable(NamedTuple):
    """A train graph that teaches nothing, and why."""

    file: GraphFile
    reason: str


def why_unusable(graph: Graph) -> str | None:
    """Say why no order of configs can be learned from `graph`, or None if one can."""
    if not graph.is_labelled:
        return "runtimes are withheld"
    first, group = distinct_configs(graph)
    if len(first) < 2:
        return f"only one distinct config, measured {graph.n_configs} times"
    mean_ns = group_means(graph.runtime_ns, group)
    if mean_ns.min() == mean_ns.max():
        return "all configs have the same runtime"
    return None


def split_usable(files: Sequence[GraphFile]) -> tuple[list[GraphFile], list[Unusable]]:
    """Part the graphs that a ranker can learn from and those it cannot, one in memory at a time.

    Raises:
        PipelineError: a file is damaged.
    """
    reasons = [(file, why_unusable(read_graph(file))) for file in files]
    usable = [file for file, reason in reasons if reason is None]
    return usable, [Unusable(file, reason) for file, reason in reasons if reason is not None]


def file_stem(name: str, split: str) -> str:
    """Return a graph's file stem: its name, or 32 hex digits of it in the test split."""
    if split != "test":
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def write_withheld(
    path: Path,
    runtimes: Mapping[str, NDArray[np.int64]],
    *,
    normalizers: Mapping[str, NDArray[np.int64]] | None = None,
) -> None:
    """Write runtimes (c,) int64 ns, and of kernels those of the default, by submission ID."""
    members = dict(sorted(runtimes.items()))
    members |= {_NORMALIZER + name: of for name, of in sorted((normalizers or {}).items())}
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **members)


def read_withheld(
    data_dir: Path,
) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """Return both, as `write_withheld` takes them; PipelineError: missing or damaged."""
    path = data_dir / WITHHELD
    if not path.is_file():
        raise PipelineError(
            f"{path}: no such file; the sample, collected and synthetic data keep test runtimes "
            "there, those of the dataset are not public"
        )
    with Archive(path) as archive:
        found = {name: archive.array(name, dtype=np.int64, shape=(None,)) for name in archive.keys}
    names = [name for name in found if name.startswith(_NORMALIZER)]
    normalizers = {name.removeprefix(_NORMALIZER): found.pop(name) for name in names}
    return found, normalizers
