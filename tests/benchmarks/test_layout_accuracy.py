"""The comparison of layout models: splits, cells that resume, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import cells as accuracy_cells
from benchmarks.accuracy import command as accuracy_command
from benchmarks.accuracy import judge as accuracy_judge
from benchmarks.accuracy import layout as layout_accuracy
from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.command import cells_of
from benchmarks.accuracy.comparisons import CONTENDERS, Contender
from benchmarks.accuracy.tasks import (
    REPORTED_SEEDS,
    TASKS,
    Part,
    Sources,
    Split,
    family_folds,
    split_distinct,
    split_for_tuning,
    why_no_data,
    within_graph,
)
from common.errors import PipelineError, UsageError
from common.metrics import kendall_tau
from common.settings import SAMPLE
from data.graphs.distinct import config_hashes, distinct_configs
from data.read import read_layout
from data.synthetic import GraphSize, write_sized
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named, npz_root
from data.withheld import read_withheld
from models.config.recipe import load_recipe
from models.run_folder import DONE
from models.train import load_model, train_model
from models.training.jobs import TrainJob

XLA_DEFAULT = collection_named("layout:xla:default")
SMALL = (
    "cross_config_sage.hidden=8",
    "cross_config_sage.configs_per_step=8",
    "cross_config_sage.training.steps=10",
    "layout_boosting.rounds=3",
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, tiny_tree: Path) -> Sources:
    """A small synthetic graph under the name of the real one; the tiny tree as the sample."""
    real = tmp_path_factory.mktemp("real")
    size = GraphSize(300, 8, 150)
    for split, name in (("train", "unet3d"), ("valid", "unet_3d.4x4.bf16")):
        path = real / "npz" / "layout" / "xla" / "default" / split / f"{name}.npz"
        path.parent.mkdir(parents=True)
        write_sized(real / split, size, collection=XLA_DEFAULT).path.rename(path)
    return Sources(tiny_tree, real)


def _hashes(file: GraphFile) -> set[int]:
    return set(config_hashes(read_layout(file)).tolist())


def test_models_of_one_program_are_left_out_of_tasks_across_programs(sources: Sources) -> None:
    cells = list(cells_of(list(TASKS), ["columns", "linear"], [0], sources))
    tasks = {name: {c.task for c in cells if c.contender == name} for name in ("columns", "linear")}
    assert tasks == {"columns": {"unet3d-all", "unet3d-100"}, "linear": set(TASKS)}


@pytest.mark.parametrize("contender", ["columns", "linear"])
def test_rankers_without_steps_leave_a_cell(
    contender: str, sources: Sources, tmp_path: Path
) -> None:
    cell = Cell("unet3d-100", contender, 0)
    assert run_cell(cell, sources, tmp_path)
    content = json.loads(cell.path(tmp_path).read_text())
    (graph,) = content["graphs"].values()
    assert -1 <= graph["kendall_tau"] <= 1
    assert len(content["curve"]) == 1


@pytest.mark.parametrize("n_train", [None, 20])
@pytest.mark.parametrize("split", [split_distinct, split_for_tuning])
def test_no_distinct_config_is_on_both_sides(
    split: Split, n_train: int | None, sources: Sources, tmp_path: Path
) -> None:
    whole = read_layout(TASKS["unet3d-all"].files(sources)[0])
    first, _ = distinct_configs(whole)
    assert len(first) < whole.n_configs
    (part,) = within_graph(n_train, split)(sources, 1, tmp_path)
    (learned,), (judged,) = part.train, part.judged
    assert not _hashes(learned) & _hashes(judged)
    held_out, train = split(len(first), 1)
    assert len(_hashes(judged)) == len(held_out)
    assert len(_hashes(learned)) == (n_train or len(train))
    rows = [read_layout(file).n_configs for file in (learned, judged)]
    if n_train is None and split is split_distinct:
        assert sum(rows) == whole.n_configs
        assert len(held_out) == round(0.2 * len(first))


def test_written_rows_keep_their_configs_and_runtimes(sources: Sources, tmp_path: Path) -> None:
    whole = read_layout(TASKS["unet3d-all"].files(sources)[0])
    (part,) = TASKS["unet3d-all"].parts(sources, 0, tmp_path)
    found = []
    for file in (*part.train, *part.judged):
        graph = read_layout(file)
        assert (graph.node_feat == whole.node_feat).all()
        assert (graph.edge_index == whole.edge_index).all()
        found += list(zip(config_hashes(graph), graph.runtime_ns, strict=True))
    assert sorted(found) == sorted(zip(config_hashes(whole), whole.runtime_ns, strict=True))


def test_tuning_never_sees_what_a_reported_seed_holds_out() -> None:
    reported = set(np.concatenate([split_distinct(500, seed)[0] for seed in REPORTED_SEEDS]))
    held_out, train = split_for_tuning(500, 3)
    assert not reported & {*held_out, *train}
    assert len(reported) + len(held_out) + len(train) == 500
    assert set(split_distinct(500, 0)[0]) != set(split_distinct(500, 1)[0])


def _files(names: str) -> list[GraphFile]:
    return [GraphFile(XLA_DEFAULT, "train", name, Path(f"{name}.npz")) for name in names.split()]


def test_folds_keep_families_together() -> None:
    files = _files("mlp_b16 mlp_b64 mixer_b1 mixer_b4 unet_b2 unet_b6 gru_b8 lstm_b4 lstm_b9")
    families = {file.submission_id: file.name.split("_")[0] for file in files}
    parts = family_folds("xla", files, families, seed=0)
    assert len(parts) == 4
    assert sorted(file.name for part in parts for file in part.judged) == sorted(
        file.name for file in files
    )
    for part in parts:
        assert sorted((*part.train, *part.judged), key=files.index) == files
        learned = {families[file.submission_id] for file in part.train}
        assert not learned & {families[file.submission_id] for file in part.judged}
    assert len(family_folds("xla", files[:5], families, seed=0)) == 3


def test_the_sample_is_split_by_family(sources: Sources, tmp_path: Path) -> None:
    sample = Sources(SAMPLE, None)
    families = accuracy_cells.sample_families(sample.sample)
    for task, splits in (("sample-folds", {"train", "valid"}), ("sample", {"valid"})):
        parts = TASKS[task].parts(sample, 0, tmp_path)
        assert {file.split for part in parts for file in part.judged} == splits
        for part in parts:
            learned = {families[file.submission_id] for file in part.train}
            assert not learned & {families[file.submission_id] for file in part.judged}
    tuning = TASKS["sample-folds"].tuning_parts
    assert tuning is not None
    used = [file for part in tuning(sample, 0, tmp_path) for file in (*part.train, *part.judged)]
    assert {file.split for file in used} == {"train"}


def test_the_private_split_is_judged_by_what_was_withheld(tmp_path: Path) -> None:
    parts = TASKS["private"].parts(Sources(SAMPLE, None), 0, tmp_path)
    assert [part.name for part in parts] == [collection.slug for collection in LAYOUT_COLLECTIONS]
    withheld = read_withheld(SAMPLE)
    for part in parts:
        assert {file.split for file in part.train} == {"train"}
        for file in part.judged:
            given = npz_root(SAMPLE) / file.collection.folder / "test" / f"{file.name}.npz"
            own = read_layout(GraphFile(file.collection, "test", file.name, given))
            labelled = read_layout(file)
            assert not own.runtime_ns.any()
            np.testing.assert_array_equal(labelled.runtime_ns, withheld[file.submission_id])
            np.testing.assert_array_equal(config_hashes(labelled), config_hashes(own))
    judged = {file.submission_id for part in parts for file in part.judged}
    assert judged == {name for name in withheld if name.startswith("layout:")}


def test_a_cell_is_resumed_and_starts_anew_where_it_was_interrupted(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("unet3d-100", "ours", 2, SMALL)
    leftover = tmp_path / "work" / f"cells-{cell.path(tmp_path).stem}" / "unet3d" / "run"
    leftover.mkdir(parents=True)
    (leftover / DONE).write_text("a run that was killed")
    assert run_cell(cell, sources, tmp_path)
    assert not leftover.exists()
    content = cell.path(tmp_path).read_bytes()
    monkeypatch.setattr(accuracy_cells, "train_model", None)
    assert not run_cell(cell, sources, tmp_path)
    assert cell.path(tmp_path).read_bytes() == content
    older = json.loads(content)
    del older["recipe"]["cross_config_sage"]["training"]["early_stop"]  # a key that came later
    cell.path(tmp_path).write_text(json.dumps(older))
    assert not run_cell(cell, sources, tmp_path)
    with pytest.raises(UsageError, match="hidden = 8, now 4; choose another --out"):
        run_cell(
            Cell("unet3d-100", "ours", 2, (*SMALL, "cross_config_sage.hidden=4")), sources, tmp_path
        )


def test_a_blend_is_judged_with_and_without_its_trees(sources: Sources, tmp_path: Path) -> None:
    cells = list(cells_of(["cross-graph"], ["blend", "two-seeds"], [3], sources, settings=SMALL))
    assert [cell.contender for cell in cells] == ["blend"]  # the other comes with it
    assert run_cell(cells[0], sources, tmp_path)
    networks = ["cross_config_sage-seed3", "cross_config_sage-seed1003"]
    trees = ["layout_boosting-seed3", "layout_boosting-seed1003"]
    (part,) = TASKS["cross-graph"].parts(sources, 3, tmp_path / "data")
    graph, recipe = read_layout(part.judged[0]), cells[0].recipe()
    scores = {}
    for name, (model, seed) in cells[0].members.items():
        train_model(
            TrainJob(model, recipe, part.train, seed, tmp_path / name), XLA_DEFAULT, resume=False
        )
        found = load_model(tmp_path / name).score(graph).astype(np.float64)
        scores[name] = (found - found.min()) / (found.max() - found.min())
    assert list(scores) == [*networks, *trees]
    weight = recipe.blend.weights["layout_boosting"]
    both = np.sum([scores[name] for name in networks], axis=0)
    by_hand = {
        "two-seeds": both,
        "blend": both + weight * np.sum([scores[n] for n in trees], axis=0),
    }
    for contender, blended in by_hand.items():
        (path,) = (tmp_path / "cells").glob(f"*--{contender}--3.json")
        content = json.loads(path.read_text())
        (judged,) = content["graphs"].values()
        place = np.argsort(np.argsort(blended.astype(np.float32), kind="stable"))
        assert judged["kendall_tau"] == pytest.approx(kendall_tau(place, graph.runtime_ns))
        assert content["recipe"]["seeds"] == [3, 1003]


def test_a_killed_cell_leaves_no_result(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy_cells, "judge", killed)
    cell = Cell("unet3d-100", "boosting", 0, SMALL)
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, sources, tmp_path)
    assert not cell.path(tmp_path).exists()


def test_a_curve_is_that_of_the_undisturbed_training(sources: Sources, tmp_path: Path) -> None:
    run_cell(Cell("unet3d-all", "ours", 0, SMALL), sources, tmp_path)
    (path,) = (tmp_path / "cells").glob("*.json")
    found = json.loads(path.read_text())
    assert [point["step"] for point in found["curve"]] == [2, 4, 6, 8, 10]
    for key in ("wall_s", "cpu_s"):
        seconds = [point[key] for point in found["curve"]]
        assert seconds == sorted(seconds) and seconds[0] > 0 and found[key] == seconds[-1]
    (graph,) = found["graphs"].values()
    taus = [list(point["kendall_tau"].values()) for point in found["curve"]]
    assert taus[-1] == [graph["kendall_tau"]]
    assert len({tau for (tau,) in taus}) > 2
    assert graph["slowdown@1"] >= graph["slowdown@10"] >= 1
    # the same steps without checkpoints on the way end in the same scores
    parts = TASKS["unet3d-all"].parts(sources, 0, tmp_path / "again")
    assert _plain_tau(parts[0], tmp_path / "plain") == graph["kendall_tau"]


def _plain_tau(part: Part, run_dir: Path) -> float:
    recipe = load_recipe("cpu", [*SMALL, "threads=1"])
    job = TrainJob("cross_config_sage", recipe, part.train, 0, run_dir)
    train_model(job, XLA_DEFAULT, resume=False)
    judged = accuracy_judge.judge(load_model(run_dir), read_layout(part.judged[0]))
    return float(judged["kendall_tau"])


def test_what_cannot_be_had_is_left_out_with_a_reason(
    tiny_tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONTENDERS, "gcn", Contender(("no_such_model",), "cpu"))
    here = Sources(tiny_tree, None)
    cells = accuracy_command.cells_of(list(TASKS), ["boosting", "gcn"], [0, 1], here)
    assert [(cell.task, cell.contender, cell.seed) for cell in cells] == [
        (task, "boosting", seed)
        for seed in (0, 1)
        for task in ("sample-folds", "sample", "private")
    ]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and sum("TPUGRAPHS_REAL" in line for line in lines) == 3
    assert "no model 'no_such_model'" in lines[-1]
    assert not list(
        accuracy_command.cells_of(["sample", "cross-graph"], ["ours"], [0], here, tuning=True)
    )
    assert "is missing" in str(why_no_data(TASKS["cross-graph"], Sources(tiny_tree, tiny_tree)))


def test_overrides_go_to_the_contender_they_name() -> None:
    settings = ["a=1", "ours:b=2", "gcn:c=x:y"]
    assert accuracy_command.overrides_for("ours", settings, CONTENDERS) == ("a=1", "b=2")
    assert accuracy_command.overrides_for("gcn", settings, CONTENDERS) == ("a=1", "c=x:y")


def test_the_command_trains_resumes_tunes_and_reports(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--out", str(tmp_path), "--sample", str(sources.sample), "--real", str(sources.real)]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    run = [*base, *settings, "--models", "boosting,ours", "--seeds", "0"]
    assert layout_accuracy.main([*run, "--tasks", "sample-folds,unet3d-100"]) == 0
    assert layout_accuracy.main([*run, "--tasks", "sample-folds,unet3d-100"]) == 0
    assert capsys.readouterr().out.count("was there") == 4
    assert layout_accuracy.main([*run, "--tasks", "unet3d-100", "--tuning"]) == 0
    assert "## unet3d-100" in capsys.readouterr().out
    assert len(list((tmp_path / "cells").iterdir())) == 4
    page = tmp_path / "page.md"
    assert layout_accuracy.main([*base, "--report", str(page)]) == 0
    assert "boosting − ours" in page.read_text()
    assert layout_accuracy.main(["--out", str(tmp_path / "none"), "--report", str(page)]) == 1
    assert "run without --report first" in capsys.readouterr().err


def test_a_failed_cell_does_not_stop_the_others(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(cell: Cell, *_: object) -> bool:
        if cell.seed == 0:
            raise PipelineError("no space")
        return True

    monkeypatch.setattr(accuracy_command, "run_cell", fails)
    cells = [Cell("sample", "ours", seed) for seed in (0, 1)]
    assert accuracy_command.run_cells(cells, sources, tmp_path) == 1
