"""Cells are trained, judged by the submission's metrics, and resumed; the command does so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import cells_of, main
from benchmarks.accuracy.cells import ALONE, CONTENDERS, Cell, read_judged, run_cell
from benchmarks.accuracy.tasks import TASKS, XLA_DEFAULT, Sources
from common.metrics import kendall_tau
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_layout
from data.labels import read_withheld
from models.registry import TrainJob, load_model
from models.run_folder import DONE
from models.train import train_model
from models.trees.siblings import signature_of

COLUMNS, EARLY = "config_columns_boosting", "early_fusion_sage"
LATE_ALONE = f"late_fusion_sage{ALONE}"
SMALL = (
    "cross_config_sage.hidden=8",
    "cross_config_sage.configs_per_step=8",
    "cross_config_sage.training.steps=4",
    "layout_boosting.num_boost_round=3",
    "late_fusion_sage.hidden=8",
    "late_fusion_sage.training.steps=3",
    "early_fusion_sage.hidden=8",
    "early_fusion_sage.training.steps=3",
    "tile_boosting.num_boost_round=3",
)


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
    task, sources = TASKS["siblings"], Sources(SAMPLE, None)
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
    sources, withheld = Sources(SAMPLE, None), read_withheld(SAMPLE)
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


def test_default_blends_its_members(sources: Sources, tmp_path: Path) -> None:
    cell = Cell("unet3d-100", "default", 3, SMALL)
    assert run_cell(cell, sources, tmp_path)
    (part,) = TASKS[cell.task].folds(sources, 3, tmp_path / "data")
    graph, recipe = read_layout(part.judged[0]), cell.recipe()
    blended = np.zeros(graph.n_configs)
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, part.train, seed, tmp_path / name)
        train_model(job, XLA_DEFAULT, resume=False)
        found = load_model(tmp_path / name).score(graph).astype(np.float64)
        blended += (found - found.min()) / (found.max() - found.min())
    assert {seed for _, seed in cell.members.values()} == {3, 1003}
    content = json.loads(cell.path(tmp_path).read_text())
    (figures,) = content["graphs"].values()
    place = np.argsort(np.argsort(blended.astype(np.float32), kind="stable"))
    assert figures["kendall_tau"] == pytest.approx(kendall_tau(place, graph.runtime_ns))
    assert content["recipe"]["seeds"] == [3, 1003]


def test_command_trains_resumes_and_continues_after_a_failure(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [setting for setting in SMALL if setting.startswith(("tile", "late", "early"))]
    settings = [word for setting in small for word in ("--set", setting)]
    run = ["--out", str(tmp_path), "--sample", str(sources.sample), *settings]
    run += ["--tasks", "tiles", "--seeds", "0"]
    main(run)
    cells = {name: tmp_path / "cells" / f"tiles--{name}--0.json" for name in CONTENDERS["tile"]}
    assert sorted((tmp_path / "cells").iterdir()) == sorted(cells.values())
    assert json.loads(cells["baseline"].read_text())["train_cpu_s"] == 0
    assert json.loads(cells["tile_boosting"].read_text())["set"] == small
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
