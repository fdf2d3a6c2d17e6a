"""What layout models are judged on: which configs or graphs they learn from, which are held out.

A within-graph task writes two files of one graph, each with the rows of some of its distinct
configs, as an official tree, so that models go through the same path as everywhere.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.files import write_configs, write_rows
from data.graphs.distinct import distinct_configs
from data.read import read_layout
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named, find_graphs, npz_root
from data.withheld import read_withheld
from models.training.folds import family_of, grouped_folds

XLA_DEFAULT = collection_named("layout:xla:default")
HELD_OUT = 0.2  # of the distinct configs
FEW_CONFIGS = 100
FOLDS = 4
POOLED_BELOW = 2 * FOLDS  # graphs of a collection; with fewer, a source's searches share a model
# Configs that any of these seeds holds out are never looked at in tuning.
REPORTED_SEEDS = (0, 1, 2, 3, 4)
SPLIT, TUNING_SPLIT = 1, 2  # streams of random numbers, beside the seed


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


Parts = Callable[[Sources, int, Path], list[Part]]
# (u, seed) -> the held-out and the other distinct configs, by number
Split = Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class Task:
    """One question.

    Attributes:
        note: what is asked, for the report.
        files: the source files, by which a changed data set is told.
        parts: the trainings for a seed; files that must be written go into the given folder.
        tuning_parts: the same on nothing that is reported; None where there is no such part.
        needs_real: whether it asks for real files at all.
        real_files: those of them that are not among `files`, below the folder of real ones.
    """

    note: str
    files: Callable[[Sources], list[GraphFile]]
    parts: Parts
    tuning_parts: Parts | None = None
    needs_real: bool = False
    real_files: tuple[str, ...] = ()


def split_distinct(n_distinct: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw a fifth of the distinct configs.

    Returns:
        held_out: (h,) int64 numbers of distinct configs.
        train: (u - h,) int64, in random order, so that the first ones are a sample.
    """
    return _cut(np.random.default_rng([seed, SPLIT]).permutation(n_distinct))


def split_for_tuning(n_distinct: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `split_distinct`, but of the configs alone that no reported seed holds out."""
    reported = [split_distinct(n_distinct, other)[0] for other in REPORTED_SEEDS]
    free = np.setdiff1d(np.arange(n_distinct), np.concatenate(reported))
    return _cut(np.random.default_rng([seed, TUNING_SPLIT]).permutation(free))


def _cut(order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n_held_out = max(1, round(HELD_OUT * len(order)))
    return order[:n_held_out], order[n_held_out:]


def within_graph(n_train: int | None, split: Split) -> Parts:
    """Learn from `n_train` distinct configs of unet3d (None: all), judge the held-out ones."""

    def parts(sources: Sources, seed: int, folder: Path) -> list[Part]:
        graph = read_layout(_real_file(sources, "train", "unet3d"))
        first, _ = distinct_configs(graph)
        held_out, train = split(len(first), seed)
        learned = write_configs(graph, train[:n_train], folder, "train")
        judged = write_configs(graph, held_out, folder, "valid")
        return [Part("unet3d", (learned,), (judged,))]

    return parts


def _across_graphs(sources: Sources, seed: int, folder: Path) -> list[Part]:
    learned, judged = _cross_graph_files(sources)
    return [Part("cross-graph", (learned,), (judged,))]


def _official_split(sources: Sources, seed: int, folder: Path) -> list[Part]:
    files = _labelled(sources)
    parts = []
    for collection in LAYOUT_COLLECTIONS:
        mine = [file for file in files if file.collection == collection]
        train = tuple(file for file in mine if file.split == "train")
        judged = tuple(file for file in mine if file.split == "valid")
        if train and judged:
            parts.append(Part(collection.slug, train, judged))
    return parts


def _private_split(sources: Sources, seed: int, folder: Path) -> list[Part]:
    """Learn from train, judge test, whose runtimes are put beside its configs for it."""
    withheld = read_withheld(sources.sample)
    parts = []
    for collection in LAYOUT_COLLECTIONS:
        files = _labelled(sources, ("train", "test"))
        mine = [file for file in files if file.collection == collection]
        train = tuple(file for file in mine if file.split == "train")
        judged = []
        for file in mine:
            if file.split == "test":
                graph, runtime_ns = read_layout(file), withheld[file.submission_id]
                rows = np.arange(len(runtime_ns))
                judged.append(write_rows(graph, rows, runtime_ns, folder, "test"))
        if train and judged:
            parts.append(Part(collection.slug, train, tuple(judged)))
    return parts


def folds_of(pools: Callable[[Sources], Iterable[tuple[str, Sequence[GraphFile]]]]) -> Parts:
    """Hold each fold of families out once; the folds differ by seed.

    Args:
        pools: gives the graphs that share a model, by name.
    """

    def parts(sources: Sources, seed: int, folder: Path) -> list[Part]:
        families = sample_families(sources.sample)
        return [
            part
            for name, files in pools(sources)
            for part in family_folds(name, files, families, seed)
        ]

    return parts


def _folds(splits: Sequence[str]) -> Parts:
    return folds_of(lambda sources: _pools(_labelled(sources, splits)))


def family_folds(
    name: str, files: Sequence[GraphFile], families: dict[str, str], seed: int
) -> list[Part]:
    """Part graphs into folds, each family whole in one of them; fewer folds for few families.

    Args:
        families: by submission ID; a graph that is not among them is grouped by its name.
    """
    # models.training.folds reads a family off the name, and the sample's names are not all of its
    # form.
    known = {file.path: families.get(file.submission_id, family_of(file)) for file in files}
    named = {
        path: replace(file, name=f"{known[path]}_batch_{number}")
        for number, (path, file) in enumerate((file.path, file) for file in files)
    }
    n_folds = min(FOLDS, len({family_of(file) for file in named.values()}))
    folds = grouped_folds(list(named.values()), n_folds, seed)
    original = {file.path: file for file in files}
    parts = []
    for number, fold in enumerate(folds):
        held_out = {file.path for file in fold}
        train = tuple(file for path, file in original.items() if path not in held_out)
        judged = tuple(file for path, file in original.items() if path in held_out)
        parts.append(Part(f"{name}-fold-{number}", train, judged))
    return parts


def _pools(files: Sequence[GraphFile]) -> Iterator[tuple[str, list[GraphFile]]]:
    """Yield the graphs that share a model: a collection's, or of a whole source where few."""
    for source in ("xla", "nlp"):
        searches = [c for c in LAYOUT_COLLECTIONS if c.name.split(":")[1] == source]
        mine = {c.slug: [file for file in files if file.collection == c] for c in searches}
        if min(map(len, mine.values())) < POOLED_BELOW:
            mine = {f"layout-{source}": [file for part in mine.values() for file in part]}
        yield from ((name, part) for name, part in mine.items() if part)


def sample_families(folder: Path) -> dict[str, str]:
    """Return the family of each graph by submission ID, as the sample's manifest says; or {}."""
    return {
        name: str(graph["family"])
        for name, graph in sample_manifest(folder).items()
        if "family" in graph
    }


def sample_manifest(folder: Path) -> dict[str, dict[str, object]]:
    """Return what manifest.json says of each graph by submission ID; {} if there is none."""
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    graphs: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))["graphs"]
    return graphs


def _labelled(sources: Sources, splits: Sequence[str] = ("train", "valid")) -> list[GraphFile]:
    return find_graphs(sources.sample, collections=LAYOUT_COLLECTIONS, splits=splits)


def _real_file(sources: Sources, split: str, name: str) -> GraphFile:
    assert sources.real is not None
    path = npz_root(sources.real) / XLA_DEFAULT.folder / split / f"{name}.npz"
    return GraphFile(XLA_DEFAULT, split, name, path)


def _unet3d_files(sources: Sources) -> list[GraphFile]:
    return [_real_file(sources, "train", "unet3d")]


def _cross_graph_files(sources: Sources) -> list[GraphFile]:
    return [*_unet3d_files(sources), _real_file(sources, "valid", "unet_3d.4x4.bf16")]


def why_no_data(task: Task, sources: Sources) -> str | None:
    """Say which file of a task is missing, or None if all are there."""
    wanted = []
    if task.needs_real:
        if sources.real is None or not sources.real.is_dir():
            return "needs real TpuGraphs files; pass --real DIR or set TPUGRAPHS_REAL"
        wanted += [sources.real / name for name in task.real_files]
    wanted += [file.path for file in task.files(sources)]
    missing = [path for path in wanted if not path.is_file()]
    return f"{missing[0]} is missing" if missing else None


WITHIN_GRAPH = ("unet3d-all", "unet3d-100")

TASKS: dict[str, Task] = {
    "sample-folds": Task(
        f"Graphs of families never seen: all labelled layout graphs of the embedded sample in "
        f"{FOLDS} folds by family, drawn anew for each seed. `xla` has one model per collection; "
        "the `nlp` collections have too few graphs, and share one.",
        _labelled,
        _folds(("train", "valid")),
        _folds(("train",)),
    ),
    "sample": Task(
        "Graphs of families never seen, by the sample's own split: one model per collection.",
        _labelled,
        _official_split,
    ),
    "private": Task(
        "Graphs of families never seen: learned from the sample's train split, judged on its test "
        "split by the runtimes that are withheld from the pipeline. `ours` is the recipe `cpu` as "
        "it is, `tuned` what an hour of `tune` on the train split found "
        "(`configs/cpu_tuned.toml`); the search saw nothing of what is judged here.",
        lambda sources: _labelled(sources, ("train", "test")),
        _private_split,
    ),
    "unet3d-all": Task(
        "Configs never seen of a graph that is known: `unet3d` of TpuGraphs, 80 % of its distinct "
        "configs to learn from; judged on all measurements of the other 20 %. Each seed draws "
        "another split.",
        _unet3d_files,
        within_graph(None, split_distinct),
        within_graph(None, split_for_tuning),
        needs_real=True,
    ),
    "unet3d-100": Task(
        f"The same held-out configs, with {FEW_CONFIGS} distinct configs to learn from.",
        _unet3d_files,
        within_graph(FEW_CONFIGS, split_distinct),
        within_graph(FEW_CONFIGS, split_for_tuning),
        needs_real=True,
    ),
    "cross-graph": Task(
        "Learned from all of `unet3d`, judged on `unet_3d.4x4.bf16`, both of TpuGraphs. The order "
        "of the latter's configs is mostly noise (its configs that were measured twice say so), so "
        "slowdown tells more than tau, and a high tau would be luck or leakage.",
        _cross_graph_files,
        _across_graphs,
        needs_real=True,
    ),
}
