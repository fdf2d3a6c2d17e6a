"""What tile models are judged on: kernels of families they have not learned from."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy.tasks import (
    FOLDS,
    Part,
    Parts,
    Sources,
    Task,
    folds_of,
)
from data.hlo.write import featurize_files
from data.tree import GraphFile, collection_named, find_graphs

TILE = collection_named("tile:xla")
ALEXNET = "pb/op_tuning_data.pb"


def labelled(sources: Sources, splits: Sequence[str] = ("train", "valid")) -> list[GraphFile]:
    """List the sample's kernels whose runtimes are known."""
    return find_graphs(sources.sample, collections=(TILE,), splits=splits)


def _folds(splits: Sequence[str]) -> Parts:
    return folds_of(lambda sources: [(TILE.slug, labelled(sources, splits))])


def _official_split(sources: Sources, seed: int, folder: Path) -> list[Part]:
    train, valid = (tuple(labelled(sources, (split,))) for split in ("train", "valid"))
    return [Part(TILE.slug, train, valid)]


def _alexnet(sources: Sources, seed: int, folder: Path) -> list[Part]:
    assert sources.real is not None
    judged = alexnet_kernels(sources.real, folder)
    return [Part("alexnet", tuple(labelled(sources)), judged)]


def alexnet_kernels(real: Path, folder: Path) -> tuple[GraphFile, ...]:
    """Write the kernels of the real tuning data into a folder, as the command featurize does."""
    written = featurize_files([real / ALEXNET], folder)
    return tuple(GraphFile(TILE, "test", graph.path.stem, graph.path) for graph in written)


TILE_TASKS: dict[str, Task] = {
    "sample": Task(
        "Kernels of families never seen, by the sample's own split: learned from train, judged on "
        "valid.",
        labelled,
        _official_split,
    ),
    "sample-folds": Task(
        f"Kernels of families never seen: all labelled kernels of the embedded sample in {FOLDS} "
        "folds by family, drawn anew for each seed.",
        labelled,
        _folds(("train", "valid")),
        _folds(("train",)),
    ),
    "alexnet": Task(
        "Another machine: learned from all labelled kernels of the sample, which were measured on "
        "a CPU, judged on 15 kernels of `alexnet_train_batch_32` that were measured on a TPU v3 "
        "(TpuGraphs). No model has learned from a TPU.",
        labelled,
        _alexnet,
        needs_real=True,
        real_files=(ALEXNET,),
    ),
}
