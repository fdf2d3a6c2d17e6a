"""What models are judged on: which configs or graphs they learn from, and which are held out.

A within-graph task writes two files of one graph, each with the rows of some of its distinct
configs, as an official tree, so that models go through the same path as everywhere.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.graphs.distinct import distinct_configs
from data.graphs.graph import LayoutGraph
from data.hlo.write import featurize_files
from data.npz.write import write_npz
from data.read import read_layout
from data.tree import COLLECTIONS, Collection, GraphFile, collection_named, find_graphs, npz_root
from models.training.folds import family_of, grouped_folds

TILE, XLA_DEFAULT = collection_named("tile:xla"), collection_named("layout:xla:default")
ALEXNET = "pb/op_tuning_data.pb"
UNET3D = {"train": "unet3d"}  # real graphs by split
TWO_PROGRAMS = {**UNET3D, "valid": "unet_3d.4x4.bf16"}
HELD_OUT = 0.2  # of the distinct configs
FEW_CONFIGS = 100
FOLDS = 4
POOLED_BELOW = 2 * FOLDS  # graphs of a collection; with fewer, a source's searches share a model


@dataclass(frozen=True)
class Sources:
    """Data folders (each holds npz/): the embedded sample, and real files where there are some."""

    sample: Path
    real: Path | None


@dataclass(frozen=True)
class Part:
    """One training: the graphs to learn from, and those to judge."""

    name: str
    train: tuple[GraphFile, ...]
    judged: tuple[GraphFile, ...]


@dataclass(frozen=True)
class Task:
    """One question: a note for the report, the source files, and the trainings for a seed.

    Files that must be written for a training go into the given folder.
    """

    note: str
    files: Callable[[Sources], list[GraphFile]]
    parts: Callable[[Sources, int, Path], list[Part]]
    needs_real: bool = False


def why_no_data(task: Task, sources: Sources) -> str | None:
    """Say what is missing of a task's data, or None if all is there."""
    if task.needs_real and (sources.real is None or not sources.real.is_dir()):
        return "needs real TpuGraphs files; pass --real DIR or set TPUGRAPHS_REAL"
    missing = [file.path for file in task.files(sources) if not file.path.is_file()]
    return f"{missing[0]} is missing" if missing else None


# Graphs of the sample


def labelled(kind: str, sources: Sources) -> list[GraphFile]:
    """List the sample's graphs of a kind, "layout" or "tile", whose runtimes are known."""
    splits = ("train", "valid")
    return find_graphs(sources.sample, collections=_collections(kind), splits=splits)


def sample_manifest(folder: Path) -> dict[str, dict[str, object]]:
    """Return what manifest.json says of each graph by submission ID; {} if there is none."""
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    graphs: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))["graphs"]
    return graphs


def sample_families(folder: Path) -> dict[str, str]:
    """Return the family of each graph by submission ID, as the sample's manifest says; or {}."""
    known = sample_manifest(folder).items()
    return {name: str(graph["family"]) for name, graph in known if "family" in graph}


def family_folds(
    name: str, files: Sequence[GraphFile], families: dict[str, str], seed: int
) -> list[Part]:
    """Part graphs into folds, each family whole in one of them; fewer folds for few families.

    Args:
        families: by submission ID; a graph that is not among them is grouped by its name.
    """
    # grouped_folds reads a family off the name, and the sample's names are not all of its form.
    known = {file.path: families.get(file.submission_id, family_of(file)) for file in files}
    named = [
        replace(file, name=f"{known[file.path]}_batch_{number}")
        for number, file in enumerate(files)
    ]
    n_folds = min(FOLDS, len({family_of(file) for file in named}))
    parts = []
    for number, fold in enumerate(grouped_folds(named, n_folds, seed)):
        held_out = {file.path for file in fold}
        train = tuple(file for file in files if file.path not in held_out)
        judged = tuple(file for file in files if file.path in held_out)
        parts.append(Part(f"{name}-fold-{number}", train, judged))
    return parts


def _folds(kind: str, sources: Sources, seed: int, folder: Path) -> list[Part]:
    families = sample_families(sources.sample)
    pools = _pools(labelled(kind, sources)).items()
    return [part for name, own in pools for part in family_folds(name, own, families, seed)]


def _pools(files: Sequence[GraphFile]) -> dict[str, list[GraphFile]]:
    pools = {c.slug: [file for file in files if file.collection == c] for c in COLLECTIONS}
    for source in ("layout-xla", "layout-nlp"):
        searches = {name: own for name, own in pools.items() if name.startswith(source)}
        if min(map(len, searches.values())) < POOLED_BELOW:
            pools[source] = [file for name in searches for file in pools.pop(name)]
    return {name: own for name, own in pools.items() if own}


def _official_split(kind: str, sources: Sources, seed: int, folder: Path) -> list[Part]:
    files, found = labelled(kind, sources), []
    for collection in _collections(kind):
        own = [file for file in files if file.collection == collection]
        train, judged = (tuple(f for f in own if f.split == s) for s in ("train", "valid"))
        if train and judged:
            found.append(Part(collection.slug, train, judged))
    return found


# Real graphs


def _real(names: Mapping[str, str], sources: Sources) -> list[GraphFile]:
    assert sources.real is not None
    root = npz_root(sources.real) / XLA_DEFAULT.folder
    return [
        GraphFile(XLA_DEFAULT, split, name, root / split / f"{name}.npz")
        for split, name in names.items()
    ]


def _across_graphs(sources: Sources, seed: int, folder: Path) -> list[Part]:
    learned, judged = _real(TWO_PROGRAMS, sources)
    return [Part("cross-graph", (learned,), (judged,))]


def split_distinct(n_distinct: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a fifth of the distinct configs.

    Returns:
        held_out: (h,) int64 numbers of distinct configs.
        train: (u - h,) int64, in random order, so that the first ones are a sample.
    """
    order = np.random.default_rng([seed, 1]).permutation(n_distinct)
    n_held_out = max(1, round(HELD_OUT * n_distinct))
    return order[:n_held_out], order[n_held_out:]


def within_graph(n_train: int | None, sources: Sources, seed: int, folder: Path) -> list[Part]:
    """Learn from `n_train` distinct configs of unet3d (None: all), judge the held-out ones."""
    graph = read_layout(_real(UNET3D, sources)[0])
    first, _ = distinct_configs(graph)
    held_out, train = split_distinct(len(first), seed)
    learned = write_configs(graph, train[:n_train], folder, "train")
    judged = write_configs(graph, held_out, folder, "valid")
    return [Part("unet3d", (learned,), (judged,))]


def write_configs(
    graph: LayoutGraph, distinct: NDArray[np.int64], folder: Path, split: str
) -> GraphFile:
    """Write the graph with every row of some of its distinct configs, in their old order.

    Args:
        distinct: (d,) int64 numbers of distinct configs, as `distinct_configs` counts them.
    """
    _, group = distinct_configs(graph)
    rows = np.flatnonzero(np.isin(group, distinct))
    collection = graph.file.collection
    path = folder / "npz" / collection.folder / split / f"{graph.file.name}.npz"
    write_npz(
        path,
        {
            "node_feat": graph.node_feat,
            "node_opcode": graph.node_opcode,
            "edge_index": graph.edge_index,
            "node_config_feat": graph.configs.rows(rows).astype(np.float32),
            "node_config_ids": graph.node_config_ids,
            "config_runtime": graph.runtime_ns[rows],
            "node_splits": graph.node_splits,
        },
    )
    return GraphFile(collection, split, graph.file.name, path)


def _alexnet(sources: Sources, seed: int, folder: Path) -> list[Part]:
    """Write the kernels of the real tuning data into a folder, as the command featurize does."""
    assert sources.real is not None
    written = featurize_files([sources.real / ALEXNET], folder)
    judged = tuple(GraphFile(TILE, "test", graph.path.stem, graph.path) for graph in written)
    return [Part("alexnet", tuple(labelled("tile", sources)), judged)]


def _collections(kind: str) -> tuple[Collection, ...]:
    return tuple(collection for collection in COLLECTIONS if collection.kind == kind)


WITHIN_GRAPH = ("unet3d-all", "unet3d-100")
LAYOUT_TASKS = {
    "sample-folds": Task(
        f"Graphs of families never seen: all labelled layout graphs of the embedded sample in "
        f"{FOLDS} folds by family, drawn anew for each seed. `xla` has one model per collection; "
        "the `nlp` collections have too few graphs, and share one.",
        partial(labelled, "layout"),
        partial(_folds, "layout"),
    ),
    "sample": Task(
        "Graphs of families never seen, by the sample's own split: one model per collection.",
        partial(labelled, "layout"),
        partial(_official_split, "layout"),
    ),
    "unet3d-all": Task(
        "Configs never seen of a graph that is known: `unet3d` of TpuGraphs, 80 % of its distinct "
        "configs to learn from; judged on all measurements of the other 20 %. Each seed draws "
        "another split.",
        partial(_real, UNET3D),
        partial(within_graph, None),
        needs_real=True,
    ),
    "unet3d-100": Task(
        f"The same held-out configs, with {FEW_CONFIGS} distinct configs to learn from.",
        partial(_real, UNET3D),
        partial(within_graph, FEW_CONFIGS),
        needs_real=True,
    ),
    "cross-graph": Task(
        "Learned from all of `unet3d`, judged on `unet_3d.4x4.bf16`, both of TpuGraphs. The order "
        "of the latter's configs is mostly noise (its configs that were measured twice say so), so "
        "slowdown tells more than tau, and a high tau would be luck or leakage.",
        partial(_real, TWO_PROGRAMS),
        _across_graphs,
        needs_real=True,
    ),
}
TILE_TASKS = {
    "sample": Task(
        "Kernels of families never seen, by the sample's own split: learned from train, judged on "
        "valid.",
        partial(labelled, "tile"),
        partial(_official_split, "tile"),
    ),
    "sample-folds": Task(
        f"Kernels of families never seen: all labelled kernels of the embedded sample in {FOLDS} "
        "folds by family, drawn anew for each seed.",
        partial(labelled, "tile"),
        partial(_folds, "tile"),
    ),
    "alexnet": Task(
        "Another machine: learned from all labelled kernels of the sample, which were measured on "
        "a CPU, judged on 15 kernels of `alexnet_train_batch_32` that were measured on a TPU v3 "
        "(TpuGraphs). No model has learned from a TPU.",
        partial(labelled, "tile"),
        _alexnet,
        needs_real=True,
    ),
}
TASKS = {"layout": LAYOUT_TASKS, "tile": TILE_TASKS}
