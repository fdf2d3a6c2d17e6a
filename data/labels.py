"""Runtimes of configs: read them without the graphs, withhold them, or find useless ones.

A collected or synthetic tree has the runtimes of its test split in a file outside npz/. Those of
the real dataset are not public.
"""

import hashlib
from collections.abc import Collection as Container
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.stored_graph import is_stored, read_graph
from data.graphs.graph import (
    TILE,
    Graph,
    TileGraph,
    check_runtimes,
    distinct_configs,
    group_means,
)
from data.npz.archive import Archive, NpzMember, write_npz
from data.npz.graphs import fail_field, read_fields
from data.tree import GraphFile, find_graphs

WITHHELD = Path("private") / "test_runtimes.npz"
_NORMALIZER = "normalizer/"


@dataclass(frozen=True)
class Labels:
    """Runtimes of the c configs of one graph."""

    runtime_ns: NDArray[np.int64]  # (c,) all positive; all 0 if they are withheld
    # (c,) runtimes of the default config of a tile kernel, positive; None for layouts
    normalizers: NDArray[np.int64] | None = None

    @property
    def is_labelled(self) -> bool:
        """Return whether the runtimes are known."""
        return bool(self.runtime_ns.any())

    @property
    def runtime(self) -> NDArray[Any]:
        """Return the runtimes to compare, (c,); for tiles relative to the default config."""
        return self.runtime_ns if self.normalizers is None else self.runtime_ns / self.normalizers

    def only(self, rows: NDArray[Any]) -> "Labels":
        """Return the labels of the configs at `rows` (r,), in that order."""
        normalizers = None if self.normalizers is None else self.normalizers[rows]
        return Labels(self.runtime_ns[rows], normalizers)


def labels_of(graph: Graph) -> Labels:
    normalizers = graph.runtime_normalizers if isinstance(graph, TileGraph) else None
    return Labels(graph.runtime_ns, normalizers)


def read_labels_of(file: GraphFile) -> Labels:
    """Read the labels of one graph, and no other array of an npz file."""
    if is_stored(file):
        return labels_of(read_graph(file))
    fields = ("runtime_ns", "runtime_normalizers")[: 1 + (file.collection.kind == "tile")]
    with Archive(file.path) as archive:
        arrays = read_fields(archive, {field: TILE[field] for field in fields})
        check_runtimes(arrays, partial(fail_field, archive))
    return Labels(arrays["runtime_ns"], arrays.get("runtime_normalizers"))


def read_labels(data_dir: Path, split: str, *, private: bool = False) -> Mapping[str, Labels]:
    """Read the labels of a split, or the withheld test runtimes if `private`."""
    if private:
        return read_withheld(data_dir)
    return {f.submission_id: read_labels_of(f) for f in find_graphs(data_dir, splits=(split,))}


class Unusable(NamedTuple):
    """A train graph that teaches nothing, and why."""

    file: GraphFile
    reason: str


def why_unusable(graph: Graph) -> str | None:
    """Return the reason why no order of configs can be learned from a graph; None if one can."""
    if not graph.is_labelled:
        return "runtimes are withheld"
    first, group = distinct_configs(graph)
    if len(first) < 2:
        return f"only one distinct config, measured {graph.n_configs} times"
    mean_ns = group_means(graph.runtime_ns, group)
    if mean_ns.min() == mean_ns.max():
        return "all configs have the same runtime"
    return None


def split_usable(
    files: Sequence[GraphFile], leave_out: Container[str] = ()
) -> tuple[list[GraphFile], list[Unusable]]:
    """Separate graphs that a ranker can learn from, with one graph in memory at a time."""
    is_named = {file: file.submission_id in leave_out for file in files}
    reasons = [
        (file, "named in leave_out" if is_named[file] else why_unusable(read_graph(file)))
        for file in files
    ]
    usable = [file for file, reason in reasons if reason is None]
    return usable, [Unusable(file, reason) for file, reason in reasons if reason is not None]


def file_stem(name: str, split: str) -> str:
    """Return a graph's file stem: its name, or 32 hex digits of it in the test split."""
    if split != "test":
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def write_withheld(path: Path, labels: Mapping[str, Labels]) -> None:
    members: dict[str, NpzMember] = {}
    for name, graph_labels in sorted(labels.items()):
        members[name] = graph_labels.runtime_ns
        if graph_labels.normalizers is not None:
            members[_NORMALIZER + name] = graph_labels.normalizers
    write_npz(path, members)


def read_withheld(data_dir: Path) -> dict[str, Labels]:
    """Read the withheld test runtimes of a data folder."""
    path = data_dir / WITHHELD
    if not path.is_file():
        raise PipelineError(
            f"{path}: no such file; the sample, collected and synthetic data keep test runtimes "
            "there, those of the dataset are not public"
        )
    with Archive(path) as archive:
        arrays = {name: archive.array(name, dtype=np.int64, shape=(None,)) for name in archive.keys}
    names = [name for name in arrays if not name.startswith(_NORMALIZER)]
    return {name: Labels(arrays[name], arrays.get(_NORMALIZER + name)) for name in names}
