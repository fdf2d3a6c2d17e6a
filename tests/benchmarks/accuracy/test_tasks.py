"""Held-out data: no config, family or program is used for both training and evaluation."""

from pathlib import Path

import pytest

from benchmarks.accuracy.tasks import (
    ALEXNET,
    ALL_SPLITS,
    TASKS,
    Sources,
    folds_by_family,
    further_configs,
    sample_families,
    sample_files,
    split_distinct,
)
from common.settings import SAMPLE
from data.families import family_of
from data.graph_store.stored_graph import read_layout, read_tile
from data.graphs.graph import LayoutGraph, config_hashes, distinct_configs
from data.tree import GraphFile, collection_named
from tests.support.real_data import REAL

HERE = Sources(SAMPLE, None)


def _hashes(graph: LayoutGraph) -> set[int]:
    return set(config_hashes(graph).tolist())


@pytest.mark.parametrize("n_train", [None, 20])
def test_no_distinct_config_is_on_both_sides_and_rows_keep_their_runtimes(
    n_train: int | None, sources: Sources, tmp_path: Path
) -> None:
    list_files = TASKS["unet3d-all"].files
    whole = read_layout(list_files(sources)[0])
    first, _ = distinct_configs(whole)
    assert len(first) < whole.n_configs
    (part,) = further_configs(list_files, n_train, sources, 1, tmp_path)
    graphs = learned, judged = [read_layout(file) for file in (*part.train, *part.judged)]
    assert not _hashes(learned) & _hashes(judged)
    held_out, train = split_distinct(len(first), 1)
    assert len(held_out) == len(_hashes(judged)) == round(0.2 * len(first))
    assert len(_hashes(learned)) == (n_train or len(train))
    found = []
    for graph in graphs:
        assert (graph.node_feat == whole.node_feat).all()
        assert (graph.edge_index == whole.edge_index).all()
        found += list(zip(config_hashes(graph), graph.runtime_ns, strict=True))
    every = sorted(zip(config_hashes(whole), whole.runtime_ns, strict=True))
    assert n_train or sorted(found) == every
    assert set(found) <= set(every)


def test_each_program_of_the_valid_split_is_learned_by_itself(
    sources: Sources, tmp_path: Path
) -> None:
    task = TASKS["sample-further"]
    files = task.files(sources)
    parts = task.folds(sources, 0, tmp_path)
    assert {file.split for file in files} == {"valid"}
    assert len({part.name for part in parts}) == len(parts) == len(files) > 1
    for part, file in zip(parts, files, strict=True):
        (learned,), (judged,) = part.train, part.judged
        assert learned.submission_id == judged.submission_id == file.submission_id


def test_folds_keep_families_together() -> None:
    batches = {"mlp": (16, 64), "mixer": (1, 4), "unet": (2, 6), "gru": (8,), "lstm": (4, 9)}
    names = [f"{family}_b{batch}" for family, found in batches.items() for batch in found]
    collection = collection_named("layout:xla:default")
    files = [GraphFile(collection, "train", name, Path(f"{name}.npz")) for name in names]
    families = {file.submission_id: file.name.split("_")[0] for file in files}
    parts = folds_by_family(files, families, seed=0)
    assert len(parts) == 4
    assert sorted(file.name for part in parts for file in part.judged) == sorted(names)
    for part in parts:
        assert sorted((*part.train, *part.judged), key=files.index) == files
    assert len(folds_by_family(files[:5], families, seed=0)) == 3


@pytest.mark.parametrize(
    ("task", "splits"),
    [("tiles", {"valid"}), ("layouts", set(ALL_SPLITS)), ("tile-folds", set(ALL_SPLITS))],
)
def test_no_family_of_the_sample_is_on_both_sides(
    task: str, splits: set[str], tmp_path: Path
) -> None:
    families = sample_families(SAMPLE)
    parts = TASKS[task].folds(HERE, 0, tmp_path)
    judged = [file.submission_id for part in parts for file in part.judged]
    expected = [file.submission_id for file in sample_files(TASKS[task].kind, HERE, [*splits])]
    assert sorted(judged) == sorted(expected)  # each once
    for part in parts:
        learned = {families[file.submission_id] for file in part.train}
        assert not learned & {families[file.submission_id] for file in part.judged}
        assert "test" not in {file.split for file in part.train}


@pytest.mark.skipif(not (REAL / ALEXNET).is_file(), reason=f"needs {ALEXNET} at {REAL}")
def test_the_real_kernels_are_judged_and_never_learned_from(tmp_path: Path) -> None:
    sources = Sources(SAMPLE, REAL)
    (part,) = TASKS["alexnet"].folds(sources, 0, tmp_path)
    assert part.train == tuple(sample_files("tile", sources))
    kernels = [read_tile(file) for file in part.judged]
    assert len(kernels) == 15 and sum(kernel.n_configs for kernel in kernels) == 752
    assert not {family_of(file) for file in part.judged} & set(sample_families(SAMPLE).values())
    assert TASKS["alexnet"].folds(sources, 0, tmp_path) == [part]
