"""Cells are trained, judged by the submission's metrics, resumed; and both commands do so."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import cells, segments
from benchmarks.accuracy.__main__ import cells_of, main
from benchmarks.accuracy.cells import CONTENDERS, Cell, read_judged, run_cell
from benchmarks.accuracy.tasks import TASKS, XLA_DEFAULT, Sources
from common.metrics import kendall_tau
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_layout
from data.labels import read_withheld
from models.registry import TrainJob, load_model
from models.run_folder import DONE
from models.train import train_model

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
    names = ["columns", "gcn", "floor", "boosting", "early-join", "shipped"]
    found = list(cells_of(list(TASKS), names, [0], sources))
    tasks = {name: {c.task for c in found if c.contender == name} for name in names}
    assert tasks["gcn"] == {"layouts", "unet3d-all", "unet3d-100", "cross-graph"}
    assert tasks["early-join"] == {"tiles", "tile-folds", "alexnet"}
    for served in ("columns", "floor"):  # judged on the way of what is shipped
        assert tasks[served] == set()
    alone = list(cells_of(["layouts"], ["boosting", "network"], [0], sources))
    assert [cell.contender for cell in alone] == ["boosting", "network"]
    assert not list(cells_of(["unet3d-all"], names, [0], Sources(sources.sample, None)))
    assert not list(cells_of(["unet3d-all"], names, [0], Sources(sources.sample, sources.sample)))
    said = capsys.readouterr().out
    assert "unet3d-all: left out: needs real" in said and "TPUGRAPHS_REAL" in said
    assert "unet3d.npz is missing" in said


@pytest.mark.parametrize("task", ["layouts", "tile-folds"])
def test_graphs_of_the_test_split_are_judged_by_the_runtimes_that_lie_apart(task: str) -> None:
    sources = Sources(SAMPLE, None)
    files = [file for file in TASKS[task].files(sources) if file.split == "test"]
    withheld = read_withheld(SAMPLE)
    assert len(files) > 10
    for file in files:
        graph = read_judged(file, sources)
        np.testing.assert_array_equal(graph.runtime, withheld[file.submission_id].runtime)


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


def test_a_blend_is_judged_with_and_without_its_parts(sources: Sources, tmp_path: Path) -> None:
    cell = Cell("unet3d-100", "shipped", 3, SMALL)
    assert run_cell(cell, sources, tmp_path)
    (part,) = TASKS[cell.task].parts(sources, 3, tmp_path / "data")
    graph, recipe = read_layout(part.judged[0]), cell.recipe()
    scores = {}
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, part.train, seed, tmp_path / name)
        train_model(job, XLA_DEFAULT, resume=False)
        found = load_model(tmp_path / name).score(graph).astype(np.float64)
        scores[name] = (found - found.min()) / (found.max() - found.min())
    assert {seed for _, seed in cell.members.values()} == {3, 1003}
    served = [own for own in (cell, *cell.judged_with) if own.members]
    assert {"columns", "shipped"} <= {own.contender for own in served}
    for own in served:
        content = json.loads(own.path(tmp_path).read_text())
        (judged,) = content["graphs"].values()
        blended = np.sum([scores[name] for name in own.members], axis=0).astype(np.float32)
        place = np.argsort(np.argsort(blended, kind="stable"))
        assert judged["kendall_tau"] == pytest.approx(kendall_tau(place, graph.runtime_ns))
        assert content["recipe"]["seeds"] == list({seed for _, seed in own.members.values()})


def test_the_command_trains_resumes_reports_and_goes_on_after_a_failure(
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample)]
    small = [setting for setting in SMALL if setting.startswith(("tile", "late", "early"))]
    settings = [word for setting in small for word in ("--set", setting)]
    run = [*base, *settings, "--tasks", "tiles", "--seeds", "0"]
    main(run)
    cells = {name: tmp_path / "cells" / f"tiles--{name}--0.json" for name in CONTENDERS["tile"]}
    assert sorted((tmp_path / "cells").iterdir()) == sorted(cells.values())
    trained = [json.loads(cells[name].read_text())["train_cpu_s"] for name in ("floor", "shipped")]
    assert trained[0] == 0 < trained[1]
    assert json.loads(cells["boosting"].read_text())["set"] == small
    cells["late-join"].unlink()
    with pytest.raises(SystemExit, match="1 of 3 failed"):
        main([*run, "--set", "early_fusion_sage.hidden=16"])
    said = capsys.readouterr().out
    assert "early-join, seed 0: failed: " in said and "shipped, seed 0: was there" in said
    assert "hidden = 8, now 16; choose another --out" in said
    assert cells["late-join"].exists()


def test_a_model_of_ones_own_is_a_row_beside_the_others(
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample), "--seeds", "0", "--tasks"]
    own = ["--own", "examples.gat:Gat", "--set", "gat.training.steps=2", "--set", "gat.hidden=8"]
    main([*base, "layouts", "--models", "floor"])
    main([*base, "layouts", *own])
    (path,) = (tmp_path / "cells").glob("*Gat*.json")
    cell = json.loads(path.read_text())
    assert (cell["task"], cell["contender"]) == ("layouts", "examples.gat:Gat")
    assert cell["recipe"]["gat"]["hidden"] == 8
    assert [*cell["source"]] == ["gat.py"]
    with monkeypatch.context() as edited, pytest.raises(SystemExit, match="1 of 1 failed"):
        edited.setattr(cells, "sources_of", lambda *_: {"source": {"gat.py": "0"}})
        main([*base, "layouts", *own])
    said = capsys.readouterr().out
    assert "failed: " in said and "source.gat.py" in said
    for changed in (["--set", "gat.hidden=9"], [*own, "--set", "gat.layers=1"]):  # a row with it
        with pytest.raises(SystemExit, match="1 of 1 failed"):
            main([*base[:-2], "1", "--tasks", "layouts", *own[:2], *changed])
        told = f"failed: {path}: was made with recipe.gat."
        assert told in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*base[:-1], "--against", "floor"])
    told = "--against: compares all that --out holds; expected it without --seeds"
    assert told in capsys.readouterr().err
    floor = json.loads((tmp_path / "cells" / "layouts--floor--0.json").read_text())
    assert cell["graphs"].keys() == floor["graphs"].keys()
    with pytest.raises(SystemExit, match="2"):  # nothing is trained by the same call
        main([*base, "layouts", "--report", str(tmp_path)])
    told = "--report: writes all that --out holds; expected it without --tasks, --seeds"
    assert told in capsys.readouterr().err
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    assert "| examples.gat:Gat | 1 | " in (tmp_path / "accuracy.md").read_text()
    page = (tmp_path / "accuracy.md").read_text()
    told = "| `examples.gat:Gat` | a model of one's own, trained like `network`, but by its table: "
    assert f"\n{told}2 steps, loss `pairwise_hinge` |\n\nBrackets" in page
    assert "layouts--examples.gat:Gat--0: fold-0, 1 of " in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--own", "examples.gat:Gat"], "ranks no tile configs; expected a subclass of models.t"),
        (["--own", "examples.gat:Gaat"], "module 'examples.gat' has no class 'Gaat'"),
        (["--own", "examples.gat:Gat", "--models", "linear"], "not allowed with argument --own"),
        (["--own", "examples.gat"], "--own examples.gat: expected 'package.module:Class'"),
        (["--set", "nosuch=1"], "unknown key 'nosuch'"),
        (["--models", "floor", "--set", "tgraph.hidden=8"], "is not read; trained is nothing"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_trained(
    words: list[str],
    told: str,
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample), "--tasks", "tiles"]
    with pytest.raises(SystemExit, match="2"):
        main([*base, *words])
    said = capsys.readouterr()
    assert told in said.err and not said.out
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
from models.tile.early_fusion_sage import EarlyFusionSage

class Interrupted(EarlyFusionSage):
    def forward(self, batch):
        raise KeyboardInterrupt
"""


def test_an_interrupted_cell_is_said_to_begin_anew(
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "interrupted_net.py").write_text(INTERRUPTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    base = ["--out", str(tmp_path / "out"), "--sample", str(sources.sample), "--tasks", "tiles"]
    with pytest.raises(SystemExit, match="130"):
        main([*base, "--seeds", "0", "--own", "interrupted_net:Interrupted"])
    assert "goes on, and begins anew what was not whole" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/cells/*"))


SMALL_SEGMENTS = tuple(
    f"segment_sage.{key}"
    for key in ("hidden=8", "configs_per_step=8", "table_configs=16", "head_steps=2")
)


def test_the_study_of_segments_trains_resumes_and_writes_the_page(
    sources: Sources,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "STEPS", 4)
    command = ["--out", str(tmp_path / "out"), "--real", str(sources.real), "--seeds", "0"]
    command += ["--tasks", "unet3d-all", "--pages", str(tmp_path)]
    command += [word for key in SMALL_SEGMENTS for word in ("--set", key)]
    segments.main(command)
    segments.main(command)
    said = capsys.readouterr().out
    assert said.count("trained") == said.count("was there") == len(segments.trained("unet3d-all"))
    page = (tmp_path / "segments.md").read_text()
    for name in segments.VARIANTS:
        path = tmp_path / "out" / "unet3d-all" / name / "cells" / "unet3d-all--segments--0.json"
        config = json.loads(path.read_text())["recipe"]["segment_sage"]
        assert config["segment_nodes"] == (1_000_000 if name == "whole" else 400)
        assert config["head_steps"] == (0 if name == "no-head" else 2)
        assert f"| {name} | 1 | " in page
