"""Cells are trained, judged by the submission's metrics, resumed; and the command does so."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import cells_of, main
from benchmarks.accuracy.cells import CONTENDERS, Cell, judge, run_cell
from benchmarks.accuracy.tasks import TASKS, XLA_DEFAULT, Sources, labelled
from common.metrics import kendall_tau, slowdown_at_k, tile_score
from data.read import read_layout, read_tile
from models.run_folder import DONE
from models.train import load_model, train_model
from models.training.jobs import TrainJob
from models.trees.linear import FLOORS

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


def test_what_cannot_be_learned_or_had_is_left_out(
    sources: Sources, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["columns", "gcn", "floor", "best-first", "early-join", "shipped"]
    found = list(cells_of(list(TASKS), names, [0], sources))
    tasks = {name: {c.task for c in found if c.contender == name} for name in names}
    within = {"unet3d-all", "unet3d-100"}
    tiles = {"tiles", "tile-folds", "alexnet"}
    assert tasks["gcn"] == {"layouts", "cross-graph"} | within
    assert tasks["early-join"] == tiles
    for served in ("columns", "floor", "best-first"):  # judged on the way of what is shipped
        assert tasks[served] == set()
    alone = list(cells_of(["layouts"], ["network", "best-first"], [0], sources))
    assert [cell.contender for cell in alone] == ["network", "best-first"]
    here = Sources(sources.sample, None)
    assert not list(cells_of(["cross-graph"], names, [0], here))
    assert "cross-graph: left out: needs real" in capsys.readouterr().out


def test_a_cell_is_resumed_and_starts_anew_where_it_was_interrupted(
    sources: Sources, tmp_path: Path
) -> None:
    cell = Cell("unet3d-100", "gcn", 2, ("baseline_gcn.hidden=8", "baseline_gcn.training.steps=3"))
    leftover = tmp_path / "work" / cell.path(tmp_path).stem / "unet3d" / "run"
    leftover.mkdir(parents=True)
    (leftover / DONE).write_text("a run that was killed")
    assert run_cell(cell, sources, tmp_path)
    assert not leftover.exists()
    content = cell.path(tmp_path).read_bytes()
    assert not run_cell(cell, sources, tmp_path)
    assert cell.path(tmp_path).read_bytes() == content


def test_a_blend_is_judged_with_and_without_its_trees(sources: Sources, tmp_path: Path) -> None:
    cell = Cell("cross-graph", "shipped", 3, (*SMALL, "blend.layout_spread=0"))
    assert run_cell(cell, sources, tmp_path)
    networks = ["cross_config_sage-seed3", "cross_config_sage-seed1003"]
    trees = ["layout_boosting-seed3", "layout_boosting-seed1003"]
    (part,) = TASKS["cross-graph"].parts(sources, 3, tmp_path / "data")
    graph, recipe = read_layout(part.judged[0]), cell.recipe()
    scores = {}
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, part.train, seed, tmp_path / name)
        train_model(job, XLA_DEFAULT, resume=False)
        found = load_model(tmp_path / name).score(graph).astype(np.float64)
        scores[name] = (found - found.min()) / (found.max() - found.min())
    assert list(scores) == [*networks, *trees]
    every = np.sum(list(scores.values()), axis=0)
    by_hand = {"network": scores[networks[0]], "best-first": every, "shipped": every}
    for contender, blended in by_hand.items():
        (path,) = (tmp_path / "cells").glob(f"*--{contender}--3.json")
        content = json.loads(path.read_text())
        (judged,) = content["graphs"].values()
        place = np.argsort(np.argsort(blended.astype(np.float32), kind="stable"))
        assert judged["kendall_tau"] == pytest.approx(kendall_tau(place, graph.runtime_ns))
        assert content["recipe"]["seeds"] == ([3] if contender == "network" else [3, 1003])


def test_a_kernel_is_judged_by_runtimes_over_their_normalizers(sources: Sources) -> None:
    graph = read_tile(labelled("tile", sources)[0])
    found, ranking = (
        judge(FLOORS["tile"], graph),
        np.argsort(FLOORS["tile"].score(graph), kind="stable"),
    )
    assert found["tile_score"] == tile_score(ranking, graph.normalized_runtime)
    slowdown = slowdown_at_k(ranking, graph.normalized_runtime, 5)
    assert found["top5_error"] == pytest.approx(slowdown - 1)


def test_the_command_trains_resumes_and_reports(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample)]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    run = [*base, *settings, "--tasks", "tiles", "--seeds", "0"]
    main(run)
    main(run)
    trained = ("early-join", "late-join", "shipped")
    assert capsys.readouterr().out.count("was there") == len(trained)
    made = {path.name.split("--")[1] for path in (tmp_path / "cells").iterdir()}
    assert made == set(CONTENDERS["tile"])
    floor, shipped = (
        json.loads((tmp_path / "cells" / f"tiles--{name}--0.json").read_text())
        for name in ("floor", "shipped")
    )
    assert floor["train_cpu_s"] == 0 < shipped["train_cpu_s"]
    main([*base, "--report", str(tmp_path)])
    assert "| early-join | 1 | " in (tmp_path / "accuracy.md").read_text()


def test_a_failed_cell_does_not_stop_the_others(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path), "--sample", str(sources.sample), "--tasks", "tiles"]
    options += ["--models", "early-join", "late-join", "--seeds", "0"]
    small = [word for setting in SMALL for word in ("--set", setting)]
    main([*options, *small])
    (tmp_path / "cells" / "tiles--late-join--0.json").unlink()
    with pytest.raises(SystemExit, match="1 of 2 failed"):
        main([*options, *small, "--set", "early_fusion_sage.hidden=16"])
    said = capsys.readouterr().out
    assert "early-join, seed 0: failed: " in said
    assert "hidden = 8, now 16; choose another --out" in said
    assert (tmp_path / "cells" / "tiles--late-join--0.json").exists()
