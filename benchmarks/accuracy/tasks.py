"""What models are judged on: which configs or graphs they learn from, and which are held out.

A within-graph task writes two files of one graph, each with the rows of some of its distinct
configs, as an official tree, so that models go through the same path as everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
HELD_OUT = 0.2  # of the distinct configs
FEW_CONFIGS = 100
FOLDS = 4
ALL_SPLITS = ("train", "valid", "test")
TEST_TOO = (
    "Those of the test split, whose runtimes lie apart and which no choice has seen, are judged "
    "as well, each family by one fold's models."
)


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
    """One question: its title and note on the page, the source files, the trainings for a seed.

    Files that must be written for a training go into the given folder.
    """

    kind: str  # "layout" or "tile"
    title: str
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


def labelled(
    kind: str, sources: Sources, splits: Sequence[str] = ("train", "valid")
) -> list[GraphFile]:
    """List the sample's graphs of a kind, "layout" or "tile", in some splits."""
    collections = tuple(own for own in COLLECTIONS if own.kind == kind)
    return find_graphs(sources.sample, collections=collections, splits=splits)


def sample_families(folder: Path) -> dict[str, str]:
    """Return the family of each graph by submission ID, as the sample's manifest says; or {}."""
    return {name: graph["family"] for name, graph in read_manifest(folder)["graphs"].items()}


def parts_by_family(files: Sequence[GraphFile], families: dict[str, str], seed: int) -> list[Part]:
    """Part graphs into folds, each family whole in one of them; fewer folds for few families.

    Args:
        files: Graphs to learn from and to judge.
        families: Family by submission ID. A graph that has none is grouped by its name.
        seed: Orders families of equal size.
    """
    own = [families.get(file.submission_id, family_of(file)) for file in files]
    n_folds = min(FOLDS, len(set(own)))
    fold_of = family_folds(own, n_folds, seed)
    judged = [tuple(np.array(files, object)[fold_of == number]) for number in range(n_folds)]
    return [
        Part(f"fold-{number}", tuple(f for f in files if f not in held_out), held_out)
        for number, held_out in enumerate(judged)
    ]


def _folds(kind: str, sources: Sources, seed: int, folder: Path) -> list[Part]:
    """Fold the labelled graphs; those of the test split are judged, and never learned from."""
    families = sample_families(sources.sample)
    parts = parts_by_family(labelled(kind, sources), families, seed)
    if not (sources.sample / WITHHELD).is_file():
        return parts
    unseen = parts_by_family(labelled(kind, sources, ["test"]), families, seed)
    further = [unseen[number :: len(parts)] for number in range(len(parts))]
    return [
        replace(part, judged=sum((own.judged for own in more), part.judged))
        for part, more in zip(parts, further, strict=True)
    ]


def by_source(part: Part) -> list[Part]:
    """Return a part as two, of xla's programs and of nlp's, where it has both."""

    def of(source: str, files: Sequence[GraphFile]) -> tuple[GraphFile, ...]:
        return tuple(file for file in files if file.collection.name.split(":")[1] == source)

    halves = [
        Part(f"{part.name}-{source}", of(source, part.train), of(source, part.judged))
        for source in ("nlp", "xla")
    ]
    return [half for half in halves if half.train and half.judged]


def _official_split(sources: Sources, seed: int, folder: Path) -> list[Part]:
    train, judged = (tuple(labelled("tile", sources, [split])) for split in ("train", "valid"))
    return [Part(TILE.slug, train, judged)]


# Real graphs


def _unet3d(sources: Sources) -> list[GraphFile]:
    return [_real(sources, "train", "unet3d")]


def _two_programs(sources: Sources) -> list[GraphFile]:
    return [*_unet3d(sources), _real(sources, "valid", "unet_3d.4x4.bf16")]


def _real(sources: Sources, split: str, name: str) -> GraphFile:
    assert sources.real is not None
    path = npz_root(sources.real) / XLA_DEFAULT.folder / split / f"{name}.npz"
    return GraphFile(XLA_DEFAULT, split, name, path)


def _across_graphs(sources: Sources, seed: int, folder: Path) -> list[Part]:
    learned, judged = _two_programs(sources)
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


def further_configs(
    list_files: Callable[[Sources], list[GraphFile]],
    n_train: int | None,
    sources: Sources,
    seed: int,
    folder: Path,
) -> list[Part]:
    """Learn from `n_train` distinct configs of a graph (None: all), judge those held out of it."""
    parts = []
    for file in list_files(sources):
        graph = read_layout(file)
        held_out, train = split_distinct(len(distinct_configs(graph)[0]), seed)
        learned = write_configs(graph, train[:n_train], folder, "train")
        judged = write_configs(graph, held_out, folder, "valid")
        parts.append(Part(f"{file.collection.slug}-{file.name}", (learned,), (judged,)))
    return parts


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


SAMPLE_FURTHER, SAMPLE_VALID = "sample-further", partial(labelled, "layout", splits=("valid",))
WITHIN_GRAPH = ("unet3d-all", "unet3d-100", SAMPLE_FURTHER)
TASKS = {
    "layouts": Task(
        "layout",
        "Layouts of families never seen",
        f"All labelled layout graphs of the embedded sample in {FOLDS} folds by family, drawn anew "
        "for each seed. All learn from all collections together, but `tgraph` from xla's programs "
        f"and from nlp's apart. {TEST_TOO}",
        partial(labelled, "layout", splits=ALL_SPLITS),
        partial(_folds, "layout"),
    ),
    "unet3d-all": Task(
        "layout",
        "TPU: further configs of unet3d, of 545",
        "80 % of the distinct configs to learn from; judged on all measurements of the other 20 %. "
        "Each seed draws another split.",
        _unet3d,
        partial(further_configs, _unet3d, None),
        needs_real=True,
    ),
    "unet3d-100": Task(
        "layout",
        "TPU: further configs of unet3d, of 100",
        f"The same held-out configs, with {FEW_CONFIGS} distinct configs to learn from.",
        _unet3d,
        partial(further_configs, _unet3d, FEW_CONFIGS),
        needs_real=True,
    ),
    SAMPLE_FURTHER: Task(
        "layout",
        "Further configs of the sample's programs",
        "The labelled layout graphs of the sample's valid split, each by itself: 80 % of its "
        "distinct configs (52 to 90) to learn from, judged on the others. Each seed draws another "
        "split. That `columns` may read statistics was decided on all of the sample's programs, "
        "these included. Networks are left out: 13 trainings of each.",
        SAMPLE_VALID,
        partial(further_configs, SAMPLE_VALID, None),
    ),
    "cross-graph": Task(
        "layout",
        "TPU: from unet3d to unet_3d.4x4.bf16",
        "The order of the latter's configs is mostly noise (its configs that were measured twice "
        "say so), so slowdown tells more than tau, and a high tau would be luck or leakage.",
        _two_programs,
        _across_graphs,
        needs_real=True,
    ),
    "tiles": Task(
        "tile",
        "Tiles of the valid split's families",
        "By the sample's own split: learned from train, judged on valid.",
        partial(labelled, "tile"),
        _official_split,
    ),
    "tile-folds": Task(
        "tile",
        "Tiles of families never seen",
        f"All labelled kernels of the embedded sample in {FOLDS} folds by family, drawn anew for "
        f"each seed. {TEST_TOO}",
        partial(labelled, "tile", splits=ALL_SPLITS),
        partial(_folds, "tile"),
    ),
    "alexnet": Task(
        "tile",
        "TPU: tiles of alexnet's kernels, learned on a CPU",
        "Another machine: learned from all labelled kernels of the sample, judged on 15 kernels of "
        "`alexnet_train_batch_32` that were measured on a TPU v3 (TpuGraphs). No model has learned "
        "from a TPU.",
        partial(labelled, "tile"),
        _alexnet,
        needs_real=True,
    ),
}
