"""Measured runtimes, what a ranking is judged by: those of the files, or what was withheld."""

from collections.abc import Collection as Container
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.stored_graph import is_stored
from data.graphs.distinct import sample_rows
from data.graphs.graph import TileGraph
from data.npz.archive import Archive
from data.read import read_graph
from data.tree import GraphFile, find_graphs
from data.withheld import read_withheld


@dataclass(frozen=True)
class Labels:
    """Runtimes of one graph's configs; those of layout graphs, without normalizers, as they are."""

    runtime_ns: NDArray[np.int64]  # (c,) nanoseconds, all positive; all 0 where they are withheld
    normalizers: NDArray[np.int64] | None = None  # (c,) runtimes of the default config, positive

    @property
    def is_labelled(self) -> bool:
        return bool(self.runtime_ns.any())

    @property
    def runtime(self) -> NDArray[np.float64] | NDArray[np.int64]:
        """Return the (c,) runtimes to compare: normalised where there are normalizers."""
        return self.runtime_ns if self.normalizers is None else self.runtime_ns / self.normalizers


def read_labels(data_dir: Path, split: str, *, private: bool = False) -> Mapping[str, Labels]:
    """Read the labels of a split by submission ID, and nothing else of its files.

    Args:
        private: take the withheld test runtimes instead, whatever the split.

    Raises:
        PipelineError: the split has no graph, a damaged file, or nothing was withheld.
    """
    if private:
        runtimes, normalizers = read_withheld(data_dir)
        return {name: Labels(ns, normalizers.get(name)) for name, ns in runtimes.items()}
    files = find_graphs(data_dir, splits=(split,))
    return {file.submission_id: read_labels_of(file) for file in files}


def read_labels_of(file: GraphFile) -> Labels:
    """Read one graph's labels, from its npz file or from the store.

    Raises:
        PipelineError: damaged, no configs, or a runtime or normalizer that is not positive.
    """
    if is_stored(file):
        graph = read_graph(file)
        normalizers = graph.runtime_normalizers if isinstance(graph, TileGraph) else None
        return Labels(graph.runtime_ns, normalizers)
    with Archive(file.path) as archive:
        runtime_ns = archive.array("config_runtime", dtype=np.int64, shape=(None,))
        if not len(runtime_ns):
            archive.fail("config_runtime", "has zero configs; expected at least one")
        checked = {"config_runtime": runtime_ns} if runtime_ns.any() else {}
        normalizers = None
        if file.collection.kind == "tile":
            key = "config_runtime_normalizers"
            checked[key] = normalizers = archive.array(key, dtype=np.int64, shape=runtime_ns.shape)
        for key, values in checked.items():
            if (values <= 0).any():
                row = int(np.argmax(values <= 0))
                archive.fail(key, f"row {row} is {values[row]}; expected a runtime above 0")
    return Labels(runtime_ns, normalizers)


def check_split(
    path: Path, answered: Container[str], judged: Container[str], data_dir: Path, *, split: str
) -> None:
    """Refuse rankings of another split's graphs.

    Raises:
        PipelineError: no graph is answered, but those of another split are; says what to pass.
    """
    if any(name in judged for name in answered):
        return
    for file in find_graphs(data_dir):
        if file.split != split and file.submission_id in answered:
            told = f"answers the graphs of split {file.split}, not {split}; expected the run's"
            raise PipelineError(f"{path}: {told} submission for {split}, or --split {file.split}")


def cut_to_samples(
    files: Sequence[GraphFile],
    rankings: Mapping[str, NDArray[np.int64]],
    labels: Mapping[str, Labels],
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Labels]]:
    """Judge layout graphs of which a sample is ranked on that alone, by places in the sample.

    How many configs are ranked tells which are drawn (data.graphs.distinct.sample_rows). A ranking
    of others is no sample and stays, so that whoever judges it refuses it.

    Raises:
        PipelineError: a file is damaged.
    """
    own, known = dict(rankings), dict(labels)
    for file in files:
        name, kind = file.submission_id, file.collection.kind
        n_ranked, n_configs = len(own.get(name, ())), len(known[name].runtime_ns)
        if kind == "layout" and 0 < n_ranked < n_configs:
            rows = sample_rows(read_graph(file), n_ranked)
            if np.array_equal(np.sort(own[name]), rows):
                own[name] = np.searchsorted(rows, own[name])
                known[name] = Labels(known[name].runtime_ns[rows])
    return own, known
