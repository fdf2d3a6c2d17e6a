"""No config, family or program is used for training and evaluation, and cells are resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import cells_of, main
from benchmarks.accuracy.cells import ALONE, CONTENDERS, Cell, read_judged, run_cell
from benchmarks.accuracy.tasks import (
    ALEXNET,
    ALL_SPLITS,
    TASKS,
    XLA_DEFAULT,
    Sources,
    further_configs,
    sample_families,
    sample_files,
    split_distinct,
)
from common.settings import SAMPLE
from data.families import family_of
from data.graph_store.stored_graph import read_layout, read_tile
from data.graphs.graph import LayoutGraph, config_hashes, distinct_configs
from data.labels import read_withheld
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from models.run_folder import DONE
from models.trees.siblings import signature_of
from tests.support.real_data import REAL

COLUMNS, EARLY = "config_columns_boosting", "early_fusion_sage"
LATE_ALONE = f"late_fusion_sage{ALONE}"
SMALL = (
    "late_fusion_sage.hidden=8",
    "late_fusion_sage.training.steps=3",
    "early_fusion_sage.hidden=8",
    "early_fusion_sage.training.steps=3",
    "tile_boosting.num_boost_round=3",
)
HERE = Sources(SAMPLE, None)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory, tiny_tree: Path) -> Sources:
    """A small synthetic graph under the name of the real one; the tiny tree as the sample."""
    real = tmp_path_factory.mktemp("real")
    made = write_sized(real, GraphSize(300, 8, 150), collection=XLA_DEFAULT).path
    for split, name in (("train", "unet3d"), ("valid", "unet_3d.4x4.bf16")):
        path = real / "npz" / "layout" / "xla" / "default" / split / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)
    return Sources(tiny_tree, real)


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


def test_cells_are_those_that_can_be_trained_here(
    sources: Sources, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [COLUMNS, "baseline_gcn", "baseline", "layout_boosting", EARLY, "default"]
    found = list(cells_of(list(TASKS), names, [0], sources))
    tasks = {name: {cell.task for cell in found if cell.name == name} for name in names}
    assert tasks["baseline_gcn"] == {"layouts", "unet3d-all", "unet3d-100", "cross-graph"}
    assert tasks[EARLY] == {"tiles", "tile-folds", "alexnet"}
    assert tasks[COLUMNS] == {"unet3d-all", "unet3d-100", "sample-further", "siblings"}
    assert tasks["baseline"] == tasks["default"] == set(TASKS)
    assert not list(cells_of(["unet3d-all"], names, [0], Sources(sources.sample, None)))
    assert not list(cells_of(["unet3d-all"], names, [0], Sources(sources.sample, sources.sample)))
    printed = capsys.readouterr().out
    assert "unet3d-all: left out: needs real" in printed and "unet3d.npz is missing" in printed


def test_each_graph_in_another_size_is_judged_once_with_a_sibling_to_learn_from() -> None:
    task, sources = TASKS["siblings"], HERE
    parts = task.folds(sources, 0, SAMPLE)
    judged = [file for part in parts for file in part.judged]
    assert set(judged) == set(task.files(sources)) and len(set(judged)) == len(judged) == 40
    for part in parts:
        names = {file.name for file in part.train}
        assert not names & {file.name for file in part.judged}
        learned = [signature_of(read_layout(file)) for file in part.train]
        for file in part.judged:
            assert any(signature_of(read_layout(file)).is_sibling(other) for other in learned)


@pytest.mark.parametrize("task", ["layouts", "tile-folds"])
def test_test_split_is_judged_by_withheld_runtimes(task: str) -> None:
    sources, withheld = HERE, read_withheld(SAMPLE)
    files = [file for file in TASKS[task].files(sources) if file.split == "test"]
    assert len(files) > 10
    for file in files:
        runtime = read_judged(file, sources).runtime
        np.testing.assert_array_equal(runtime, withheld[file.submission_id].runtime)


def test_interrupted_cell_restarts_and_finished_cell_stays(
    sources: Sources, tmp_path: Path
) -> None:
    cell = Cell(
        "unet3d-100", "baseline_gcn", 2, ("baseline_gcn.hidden=8", "baseline_gcn.training.steps=3")
    )
    leftover = tmp_path / "work" / cell.path(tmp_path).stem / "unet3d" / "run"
    leftover.mkdir(parents=True)
    (leftover / DONE).write_text("a run that was killed")
    assert run_cell(cell, sources, tmp_path)
    assert not leftover.exists()
    content = cell.path(tmp_path).read_bytes()
    assert not run_cell(cell, sources, tmp_path)
    assert cell.path(tmp_path).read_bytes() == content


def test_command_trains_resumes_and_continues_after_a_failure(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    run = ["--out", str(tmp_path), "--sample", str(sources.sample), *settings]
    run += ["--tasks", "tiles", "--seeds", "0"]
    main(run)
    cells = {name: tmp_path / "cells" / f"tiles--{name}--0.json" for name in CONTENDERS["tile"]}
    assert sorted((tmp_path / "cells").iterdir()) == sorted(cells.values())
    assert json.loads(cells["baseline"].read_text())["train_cpu_s"] == 0
    assert json.loads(cells["tile_boosting"].read_text())["set"] == [*SMALL]
    cells[LATE_ALONE].unlink()
    with pytest.raises(SystemExit, match=f"1 of {len(cells)} failed"):
        main([*run, "--set", "early_fusion_sage.hidden=16"])
    printed = capsys.readouterr().out
    assert f"{EARLY}, seed 0: failed: " in printed and "default, seed 0: exists" in printed
    assert "hidden = 8, now 16; choose another --out" in printed
    assert cells[LATE_ALONE].exists()


def test_custom_model_has_a_row_of_its_own(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample), "--seeds", "0"]
    own = ["--own", "examples.gat:Gat", "--set", "gat.training.steps=2", "--set", "gat.hidden=8"]
    main([*base, "--tasks", "layouts", "--models", "baseline"])
    main([*base, "--tasks", "layouts", *own])
    (path,) = (tmp_path / "cells").glob("*Gat*.json")
    cell: dict[str, Any] = json.loads(path.read_text())
    assert (cell["task"], cell["candidate"]) == ("layouts", "examples.gat:Gat")
    assert cell["recipe"]["gat"]["hidden"] == 8
    assert [*cell["source"]] == ["gat.py"]
    path.write_text(json.dumps(cell | {"source": {"gat.py": "0"}}))  # as of edited code
    with pytest.raises(SystemExit, match="1 of 1 failed"):
        main([*base, "--tasks", "layouts", *own])
    assert "source.gat.py" in capsys.readouterr().out
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "accuracy.md").read_text()
    assert "| examples.gat:Gat | 1 | " in page
    assert "| `examples.gat:Gat` | a custom model, " in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--own", "examples.gat:Gat"], "ranks no tile configs; expected a subclass of models.t"),
        (["--own", "examples.gat:Gaat"], "module 'examples.gat' has no class 'Gaat'"),
        (["--own", "examples.gat"], "--own examples.gat: expected 'package.module:Class'"),
        (["--set", "nosuch=1"], "unknown key 'nosuch'"),
        (["--set", "layout.models=['my_pkg:Mine']"], "--models names the models to train"),
        (
            ["--models", "baseline", "--set", "tgraph.hidden=8"],
            "no model reads the key; expected a table of no model",
        ),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_trained(
    words: list[str],
    message: str,
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample), "--tasks", "tiles"]
    with pytest.raises(SystemExit, match="2"):
        main([*base, *words])
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out
    assert not list(tmp_path.iterdir())
