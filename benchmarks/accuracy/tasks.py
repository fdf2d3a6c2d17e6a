"""Define the tasks: the graphs or configs that models learn from, and the held-out ones.

A within-graph task writes two files of one graph into a folder like the official one. Each file
has some of the distinct configs, so models read them in the same way as any other graph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.metrics import family_folds
from data.families import family_of
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.hlo.programs import featurize_files
from data.labels import WITHHELD
from data.manifest import read_manifest
from data.npz.archive import write_npz
from data.tree import COLLECTIONS, GraphFile, collection_named, find_graphs, npz_root

TILE, XLA_DEFAULT = collection_named("tile:xla"), collection_named("layout:xla:default")
ALEXNET = "pb/op_tuning_data.pb"
# Share of the distinct configs.
HELD_OUT_SHARE = 0.2
FEW_CONFIGS = 100
FOLDS = 4
ALL_SPLITS = ("train", "valid", "test")


class Sources(NamedTuple):
    """Data folders, each with a folder npz/. `real` has real TpuGraphs files."""

    sample: Path
    real: Path | None


class Fold(NamedTuple):
    """The graphs that one training learns from, and the graphs to judge it on."""

    name: str
    train: tuple[GraphFile, ...]
    judged: tuple[GraphFile, ...]


class HeldOutTask(NamedTuple):
    """A section of the page, and the trainings of a seed. They may write files into a folder."""

    kind: str
    title: str
    files: Callable[[Sources], list[GraphFile]]
    folds: Callable[[Sources, int, Path], list[Fold]]
    needs_real: bool = False


def why_no_data(task: HeldOutTask, sources: Sources) -> str | None:
    """Return the reason why a task cannot run here, or None if its data is complete."""
    if task.needs_real and (sources.real is None or not sources.real.is_dir()):
        return "needs real TpuGraphs files; pass --real DIR or set TPUGRAPHS_REAL"
    missing = [file.path for file in task.files(sources) if not file.path.is_file()]
    return f"{missing[0]} is missing" if missing else None


# Graphs of the sample


def sample_files(
    kind: str, sources: Sources, splits: Sequence[str] = ("train", "valid")
) -> list[GraphFile]:
    """List the layout or tile graphs of the sample."""
    collections = tuple(collection for collection in COLLECTIONS if collection.kind == kind)
    return find_graphs(sources.sample, collections=collections, splits=splits)


def sample_families(folder: Path) -> dict[str, str]:
    """Return the family of each graph by submission ID. It is empty without a manifest."""
    return {name: graph["family"] for name, graph in read_manifest(folder)["graphs"].items()}


def folds_by_family(files: Sequence[GraphFile], families: dict[str, str], seed: int) -> list[Fold]:
    """Split graphs into folds. All graphs of a family are in one fold."""
    graph_families = [families.get(file.submission_id, family_of(file)) for file in files]
    n_folds = min(FOLDS, len(set(graph_families)))
    fold_of = family_folds(graph_families, n_folds, seed)
    judged_files = [tuple(np.array(files, object)[fold_of == number]) for number in range(n_folds)]
    return [
        Fold(f"fold-{number}", tuple(f for f in files if f not in held_out), held_out)
        for number, held_out in enumerate(judged_files)
    ]


def _folds(kind: str, sources: Sources, seed: int, folder: Path) -> list[Fold]:
    families = sample_families(sources.sample)
    folds = folds_by_family(sample_files(kind, sources), families, seed)
    if not (sources.sample / WITHHELD).is_file():
        return folds
    # Graphs of the test split are judged, and never learned from.
    unseen = folds_by_family(sample_files(kind, sources, ["test"]), families, seed)
    return [
        fold._replace(judged=sum((part.judged for part in unseen[i :: len(folds)]), fold.judged))
        for i, fold in enumerate(folds)
    ]


def by_source(fold: Fold) -> list[Fold]:
    """Split a training into one on programs of xla and one on programs of nlp, if it has both."""
    halves = []
    for source in ("nlp", "xla"):
        train, judged_files = (
            tuple(file for file in files if file.collection.name.split(":")[1] == source)
            for files in (fold.train, fold.judged)
        )
        if train and judged_files:
            halves.append(Fold(f"{fold.name}-{source}", train, judged_files))
    return halves


def sibling_files(sources: Sources) -> list[GraphFile]:
    """List the labelled layout graphs of the sample whose program is there in two sizes."""
    from models.trees.siblings import signature_of

    files = sample_files("layout", sources)
    signatures = {file: signature_of(read_layout(file)) for file in files}
    return [
        file
        for file in files
        if any(
            file.name != candidate.name and signatures[file].is_sibling(signatures[candidate])
            for candidate in files
        )
    ]


def _siblings(sources: Sources, seed: int, folder: Path) -> list[Fold]:
    """Judge one size of each program. Models learn from the other size and all other graphs."""
    files, in_two_sizes = sample_files("layout", sources), sibling_files(sources)
    families = sample_families(sources.sample)
    sizes: dict[str, list[str]] = {}
    for file in in_two_sizes:
        names = sizes.setdefault(families.get(file.submission_id, family_of(file)), [])
        if file.name not in names:
            names.append(file.name)
    folds = []
    for number in range(2):
        judged_names = {names[number] for names in sizes.values()}
        judged_files = tuple(file for file in in_two_sizes if file.name in judged_names)
        train = tuple(file for file in files if file.name not in judged_names)
        folds.append(Fold(f"size-{number}", train, judged_files))
    return folds


def _official_split(sources: Sources, seed: int, folder: Path) -> list[Fold]:
    train, valid = (tuple(sample_files("tile", sources, [split])) for split in ("train", "valid"))
    return [Fold(TILE.slug, train, valid)]


# Real graphs


def _unet3d(sources: Sources) -> list[GraphFile]:
    return [_real(sources, "train", "unet3d")]


def _two_programs(sources: Sources) -> list[GraphFile]:
    return [*_unet3d(sources), _real(sources, "valid", "unet_3d.4x4.bf16")]


def _real(sources: Sources, split: str, name: str) -> GraphFile:
    assert sources.real is not None
    path = npz_root(sources.real) / XLA_DEFAULT.folder / split / f"{name}.npz"
    return GraphFile(XLA_DEFAULT, split, name, path)


def _across_graphs(sources: Sources, seed: int, folder: Path) -> list[Fold]:
    train_file, judged_file = _two_programs(sources)
    return [Fold("cross-graph", (train_file,), (judged_file,))]


def split_distinct(n_distinct: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split u distinct configs at random into h held-out ones, (h,) int64, and others, (u - h,)."""
    order = np.random.default_rng([seed, 1]).permutation(n_distinct)
    n_held_out = max(1, round(HELD_OUT_SHARE * n_distinct))
    return order[:n_held_out], order[n_held_out:]


def further_configs(
    list_files: Callable[[Sources], list[GraphFile]],
    n_train: int | None,
    sources: Sources,
    seed: int,
    folder: Path,
) -> list[Fold]:
    """Return a training per graph on `n_train` or all other configs, judged on held-out ones."""
    folds = []
    for file in list_files(sources):
        graph = read_layout(file)
        held_out, train = split_distinct(len(distinct_configs(graph)[0]), seed)
        train_file = write_configs(graph, train[:n_train], folder, "train")
        judged_file = write_configs(graph, held_out, folder, "valid")
        folds.append(Fold(f"{file.collection.slug}-{file.name}", (train_file,), (judged_file,)))
    return folds


def write_configs(
    graph: LayoutGraph, distinct: NDArray[np.int64], folder: Path, split: str
) -> GraphFile:
    """Write a graph with all rows of some distinct configs, (d,), into a data folder."""
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


def _alexnet(sources: Sources, seed: int, folder: Path) -> list[Fold]:
    assert sources.real is not None
    kernels = featurize_files([sources.real / ALEXNET], folder)
    judged_files = tuple(GraphFile(TILE, "test", graph.path.stem, graph.path) for graph in kernels)
    return [Fold("alexnet", tuple(sample_files("tile", sources)), judged_files)]


SAMPLE_FURTHER, SAMPLE_VALID = "sample-further", partial(sample_files, "layout", splits=("valid",))
SIBLINGS = "siblings"
WITHIN_GRAPH = ("unet3d-all", "unet3d-100", SAMPLE_FURTHER)
TASKS = {
    "layouts": HeldOutTask(
        "layout",
        "Layouts of families never seen",
        partial(sample_files, "layout", splits=ALL_SPLITS),
        partial(_folds, "layout"),
    ),
    "unet3d-all": HeldOutTask(
        "layout",
        "TPU: further configs of unet3d, of 545",
        _unet3d,
        partial(further_configs, _unet3d, None),
        needs_real=True,
    ),
    "unet3d-100": HeldOutTask(
        "layout",
        f"TPU: further configs of unet3d, of {FEW_CONFIGS}",
        _unet3d,
        partial(further_configs, _unet3d, FEW_CONFIGS),
        needs_real=True,
    ),
    SAMPLE_FURTHER: HeldOutTask(
        "layout",
        "Further configs of the sample's programs",
        SAMPLE_VALID,
        partial(further_configs, SAMPLE_VALID, None),
    ),
    SIBLINGS: HeldOutTask(
        "layout",
        "Layouts of programs that are known in another size",
        sibling_files,
        _siblings,
    ),
    "cross-graph": HeldOutTask(
        "layout",
        "TPU: from unet3d to unet_3d.4x4.bf16",
        _two_programs,
        _across_graphs,
        needs_real=True,
    ),
    "tiles": HeldOutTask(
        "tile",
        "Tiles of the valid split's families",
        partial(sample_files, "tile"),
        _official_split,
    ),
    "tile-folds": HeldOutTask(
        "tile",
        "Tiles of families never seen",
        partial(sample_files, "tile", splits=ALL_SPLITS),
        partial(_folds, "tile"),
    ),
    "alexnet": HeldOutTask(
        "tile",
        "TPU: tiles of alexnet's kernels, learned on a CPU",
        partial(sample_files, "tile"),
        _alexnet,
        needs_real=True,
    ),
}
