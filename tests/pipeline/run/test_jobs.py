"""The result of a run does not depend on the order and number of its jobs.

The module also tests single stages: `train` out of time, `blend`, and the key `blend.choose`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.files import write_table
from common.settings import ROOT, SAMPLE
from data.graph_store import prepare as preparing
from data.graph_store.stored_graph import read_graph
from data.tree import SPLITS, GraphFile, collection_named, find_graphs
from ensembles.blend import BlendSpec, apply_blend, write_choice
from ensembles.choice import GREEDY, RECIPE
from ensembles.ensemble import BASELINE, Member
from models.config.recipe import load_recipe
from models.predict import collection_of_scores, scores_table, write_scores
from models.registry import TrainJob
from models.run_folder import CONFIG
from pipeline.run.jobs import ranking_job, training_jobs
from tests.drills.processes import check_same
from tests.support.command_line import call

TILE, XLA = collection_named("tile:xla"), collection_named("layout:xla:random")


@pytest.fixture(scope="module")
def kernels(tiny_tree: Path) -> list[GraphFile]:
    return find_graphs(tiny_tree, collections=(TILE,), splits=("test",))


def test_rankings_wait_for_the_trainings_of_their_members_and_networks_take_a_gpu(
    kernels: list[GraphFile], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["layout.models=[cross_config_sage, layout_boosting]"])
    folder = tmp_path / "models/layout-xla-random"
    trainings = [
        (XLA, TrainJob("cross_config_sage", recipe, [], 0, folder / "net")),
        (XLA, TrainJob("cross_config_sage", recipe, [], 1, folder / "other")),
        (XLA, TrainJob("layout_boosting", recipe, [], 0, folder / "trees")),
    ]
    later = TrainJob("cross_config_sage", recipe, [], 0, folder / "later", folder / "net")
    net, other, trees, warm = training_jobs([*trainings, (XLA, later)], has_gpu=True)
    assert not net.after and not other.after and not trees.after and warm.after == {net.name}
    assert net.on_gpu and not trees.on_gpu
    # Long trainings begin first.
    assert net.weight > trees.weight > 0
    members = {
        tmp_path / model / "valid.parquet": Member(model, 0, folder / name, "layout")
        for model, name in (
            ("cross_config_sage", "net"),
            ("layout_boosting", "trees"),
            (BASELINE, "no training"),
        )
    }
    trained = {net.name, other.name, trees.name}
    job = ranking_job(recipe, kernels, members, has_gpu=True, trained=trained)
    assert job.after == {net.name, trees.name} and job.on_gpu


SHORT = (  # each kind of training, a blend that is chosen, subsets of valid configs
    "cross_config_sage.training.early_stop=1",
    "cross_config_sage.training.eval_interval=2",
    "cross_config_sage.training.steps=6",
    "late_fusion_sage.training.steps=6",
    "layout_boosting.num_boost_round=10",
    "layout_boosting.early_stop=2",
    "tile_boosting.num_boost_round=10",
    "blend.choose=true",
    "valid_configs=8",
)


@pytest.mark.parametrize(
    ("recipe", "n"),
    [("smoke", 2), *(pytest.param("cpu", n, marks=pytest.mark.slow) for n in (2, 3))],
)
def test_the_bytes_are_the_same_whoever_the_workers_are(
    recipe: str, n: int, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--data", tiny_tree, "--recipe", recipe, "--store", tmp_path / "store"]
    words += ["--collections", "tile:xla,layout:xla:random"]
    for key in SHORT:
        words += ["--set", key]
    call(*words, "--workers", 1, "--out", tmp_path / "one")
    monkeypatch.setattr(preparing, "BLOCK_FILES", 1)
    call(*words, "--workers", n, "--out", tmp_path / "many")
    check_same(tmp_path / "many", tmp_path / "one")


def test_a_run_with_two_workers_ends_well_on_another_system_than_linux(
    tiny_tree: Path, tmp_path: Path
) -> None:
    """Workers start by spawn; there is no affinity, no /proc and no way to fork."""
    words = ["run", "--data", tiny_tree, "--recipe", "smoke", "--collections", "tile:xla"]
    words += ["--set", "tile.models=[tile_linear,tile_boosting]", "--workers", 2]
    words += ["--store", tmp_path / "store", "--out", tmp_path / "run"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support/other_system")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    # The system does not report the peak memory.
    assert set(report["peak_mib"].values()) == {None}


def some_kernels(split: str) -> list[GraphFile]:
    """Return kernels of many families: all of the sample's would take a minute."""
    files = find_graphs(SAMPLE, collections=(TILE,), splits=(split,))
    return files[:: 9 if split == "valid" else 3]


def test_bad_input_is_one_line(kernels: list[GraphFile], tmp_path: Path) -> None:
    one, two, empty, none = (tmp_path / f"{name}-seed0" for name in ("one", "two", "empty", "none"))
    graphs = map(read_graph, kernels)
    tables = [scores_table(graph, np.zeros(graph.n_configs, np.float32)) for graph in graphs]
    begun = tmp_path / "begun"
    for folder in (one, two, empty, begun):
        folder.mkdir()
    (begun / CONFIG).write_text('data = "0"\n')
    for folder in (one, two):
        write_table(folder / "scores-test.parquet", pl.concat(tables))
    write_table(few := tmp_path / "few.parquet", pl.concat(tables).head(-1))
    plain = ("--method", "rank-mean")
    cases: list[tuple[int, list[Path], tuple[object, ...], str]] = [
        (2, [one, two], ("--method", "best"), "expected one of 'minmax-mean', 'rank-mean'"),
        (2, [one, one], plain, "a run or file is given twice"),
        (1, [one, empty], plain, "expected what `predict --run RUN --split test` writes"),
        (1, [one, none], plain, f"error: {none}: no such file or folder; expected a run"),
        (
            2,
            [one, begun],
            plain,
            f"error: {begun}: a whole run; pass --collection, such as tile:xla",
        ),
        (1, [one, few], plain, f"member {few} has no score for some configs of graph"),
    ]
    for code, members, words, said in cases:
        out = ("--out", tmp_path / "out.parquet")
        text = call("blend", "--runs", *members, *words, *out, expect=code)
        assert said in text and text.count("\n") == 1


def test_scores_of_another_collection_are_refused(kernels: list[GraphFile], tmp_path: Path) -> None:
    """A file of scores names its collection."""
    graphs = map(read_graph, kernels)
    tables = [scores_table(graph, np.arange(graph.n_configs, dtype=np.float32)) for graph in graphs]
    for name in ("a", "b"):
        write_scores(tmp_path / f"{name}.parquet", pl.concat(tables), "tile:xla")
    scores = ("--runs", tmp_path / "a.parquet", tmp_path / "b.parquet")
    runs = ("blend", *scores, "--out", tmp_path / "out.parquet")
    file = tmp_path / "sub.csv"
    assert "'--split': expected one of 'train', 'valid', 'test'" in call(
        *runs, "--split", "vlid", expect=2
    )
    call(*runs, "--data", kernels[0].data_dir, "--submission", file)
    assert file.read_text().splitlines()[1].startswith(f"tile:xla:{kernels[0].name},0;")
    assert collection_of_scores(tmp_path / "out.parquet") == "tile:xla"
    again = ("--out", tmp_path / "again.parquet", "--data", kernels[0].data_dir)
    other = ("blend", "--runs", tmp_path / "out.parquet", *again)
    said = call(*other, "--collection", "layout:xla:random", "--submission", file, expect=2)
    assert "out.parquet: holds scores of tile:xla; expected those of layout:xla:random" in said
    assert not (tmp_path / "again.parquet").exists()
    said = call("blend", *scores, "--out", tmp_path / "sub.csv", expect=2)
    assert "expected a name that ends in .parquet" in said and said.count("\n") == 1
    # Without --collection, the file names the collection.
    call(*other, "--submission", tmp_path / "same.csv")
    assert (tmp_path / "same.csv").read_text() == file.read_text()


@pytest.fixture(scope="module")
def chosen_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished smoke run of the sample's tiles, and a layout collection of too few graphs."""
    folder = tmp_path_factory.mktemp("choose")
    shutil.copytree(SAMPLE / "npz/layout/nlp/default", folder / "tree/npz/layout/nlp/default")
    for file in (file for split in SPLITS for file in some_kernels(split)):
        copy = folder / "tree" / file.path.relative_to(SAMPLE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.path, copy)
    out = folder / "run"
    text = call(
        *("run", "--data", folder / "tree", "--recipe", "smoke", "--out", out),
        *("--set", "blend.choose=true"),
    )
    assert "layout:nlp:default: 1 labelled graphs of 1 families" in text
    assert "tile:xla: " in text
    return out


def test_whole_runs_are_blended_by_their_members(chosen_run: Path, tmp_path: Path) -> None:
    tree, one = chosen_run.parent / "tree", tmp_path / "one"
    tiles = ("--data", tree, "--collections", "tile:xla", "--recipe", "smoke")
    call("run", *tiles, "--out", one)
    two = shutil.copytree(one, tmp_path / "two")
    both = ("--runs", one, two, "--out", tmp_path / "out.parquet")
    words = ("blend", *both, "--data", tree, "--collection", "tile:xla")
    call(*words, "--submission", tmp_path / "both.csv")
    assert (tmp_path / "both.csv").read_bytes() == (one / "submission.csv").read_bytes()
    other = next(path for path in one.glob("scores/tile-xla/*/valid.parquet"))
    words_of_valid = ("blend", "--runs", other, "--data", tree, "--out", tmp_path / "valid.parquet")
    said = call(*words_of_valid, "--submission", tmp_path / "valid.csv", expect=1)
    assert "has scores but no file; expected --data with its kernel" in said
    assert "one: a whole run; pass --collection, such as tile:xla" in call(
        "blend", *both, "--data", tree, expect=2
    )
    lacking = call("blend", *both, "--collection", "layout:xla:random", expect=1)
    assert "one: has no scores of the test split of layout:xla:random" in lacking
    (two / "DONE").unlink()
    assert f"{two}: an unfinished run; finish it with" in call(*words, expect=1)


def test_a_run_chooses_on_valid_and_reports_the_held_out_value(chosen_run: Path) -> None:
    report = json.loads((chosen_run / "report.json").read_text())
    choice = report["models"]["tile:xla"]["blend"]
    assert choice["chosen"] in {RECIPE, GREEDY}
    assert choice["n_graphs"] == 13
    assert isinstance(choice["held_out_value"], float)
    kept = choice["chosen"] == RECIPE
    assert choice["member_values"].keys() == report["models"]["tile:xla"]["member_values"].keys()
    assert choice["recipe_value"] is not None
    few = report["models"]["layout:nlp:default"]["blend"]
    assert few["chosen"] == RECIPE
    assert few["held_out_value"] is None
    page = (chosen_run / "report.html").read_text()
    assert ("did not gain more than noise" if kept else "weights fitted to the valid split") in page
    assert "the blend is the recipe's, because there are 1 labelled" in page


def test_the_choice_blends_both_splits_and_ranks(chosen_run: Path, tmp_path: Path) -> None:
    folder = chosen_run / "scores/tile-xla"
    choice = json.loads((folder / "blend/choice.json").read_text())
    spec = BlendSpec(choice["method"], choice["weights"])
    for split in ("valid", "test"):
        tables = {n: pl.read_parquet(folder / n / f"{split}.parquet") for n in spec.weights}
        blended = pl.read_parquet(folder / "blend" / f"{split}.parquet")
        assert blended.equals(apply_blend(tables, spec))
    first, *others = choice["weights"]
    choice |= {"method": "minmax-mean", "weights": {first: 1.0, **dict.fromkeys(others, 0.0)}}
    run = shutil.copytree(chosen_run, tmp_path / "run")
    write_choice(run / "scores/tile-xla/blend/choice.json", choice)
    kernel = some_kernels("test")[0].path
    alone, ranked = (
        json.loads(call("rank", kernel, "--run", folder, "--json"))["configs"]
        for folder in (run / "models/tile-xla" / first, run)
    )
    assert [entry["config"] for entry in alone] == [entry["config"] for entry in ranked]


def test_a_training_that_is_out_of_time_resumes(tmp_path: Path) -> None:
    """One line, exit code 0, no DONE mark, and the same bytes once resumed."""
    arguments = ["train", "--data", SAMPLE, "--collection", "layout:xla:random"]
    arguments += ["--recipe", "smoke", "--model", "cross_config_sage", "--set", "threads=1"]
    said = call(*arguments, "--out", tmp_path / "a", "--max-minutes", 0)
    (stop,) = (line for line in said.splitlines() if "--max-minutes" in line)
    assert "--resume" in stop
    assert not list(tmp_path.glob("a/*/DONE"))
    call(*arguments, "--out", tmp_path / "a", "--resume")
    call(*arguments, "--out", tmp_path / "b")
    for name in ("metrics.jsonl", "model.safetensors"):
        first, second = (next(tmp_path.glob(f"{run}/*/{name}")) for run in "ab")
        assert first.read_bytes() == second.read_bytes()
