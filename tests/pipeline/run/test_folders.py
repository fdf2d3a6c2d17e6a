"""Finished run folders: list, report and compare; learning curves, and shares of a blend."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from common.errors import PipelineError
from data.tree import find_graphs
from models.run_folder import CONFIG, METRICS
from pipeline.run.report import MAX_POINTS, blend_shares, learning_curves
from submissions.report.charts import RANKS_SCHEMA
from submissions.run_report import LearningCurve
from tests.support.command_line import call


@pytest.fixture(scope="module")
def finished(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a tree whose manifest has second measurements."""
    out = tmp_path_factory.mktemp("report") / "run"
    tree = Path(shutil.copytree(tiny_tree, out.with_name("tree")))
    again = {file.submission_id: {"again_tau": 0.625} for file in find_graphs(tree)}
    manifest = {"environments": {}, "graphs": again, "left_out": {}}
    (tree / "manifest.json").write_text(json.dumps(manifest))
    call("run", "--data", tree, "--recipe", "smoke", "--set", "seeds=[0,1]", "--out", out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_gives_the_same_report_again(run: Path) -> None:
    files = {p: p.read_bytes() for p in (run / "report.html", run / "report.png")}
    pages = {page: page.read_bytes() for page in (run / "graphs").iterdir()}
    for path in files:
        path.unlink()
    said = call("report", "--run", run)
    assert said == f"report      {run / 'report.html'}\npicture     {run / 'report.png'}\n"
    assert {path: path.read_bytes() for path in files | pages} == files | pages


def test_the_report_holds_what_the_pictures_rest_on(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    ranks = pl.read_parquet(finished / "valid-ranks.parquet")
    assert dict(ranks.schema) == RANKS_SCHEMA
    for name, part in report["collections"].items():
        own = ranks.filter(pl.col("collection") == name)
        assert set(own["graph"]) == set(part["per_graph"])
        curve = dict(zip(part["slowdown_curve"]["k"], part["slowdown_curve"]["model"], strict=True))
        for k in (1, 10, 100):
            plain = [graph[f"slowdown@{k}"] for graph in part["per_graph"].values()]
            if None not in plain:
                assert curve[k] == pytest.approx(sum(plain) / len(plain), abs=1e-6)
        assert set(part["seed_values"]) == {"0", "1"}
        low, high = sorted(part["seed_values"].values())
        assert part["seed_sd"] == pytest.approx((high - low) / 2**0.5)
        model = report["models"][name]
        assert set(model["weights"]) == set(model["members"])
        assert sum(model["weights"].values()) == pytest.approx(1, abs=1e-3)
    assert set(report["seconds"]) == set(report["peak_mib"])
    assert {"prepare and audit", "score"} <= set(report["seconds"])


def test_the_ceiling_is_the_second_measurement_of_the_manifest(finished: Path) -> None:
    parts = json.loads((finished / "report.json").read_text())["collections"]
    layouts = [part for name, part in parts.items() if name.startswith("layout:")]
    figures = [figures for part in layouts for figures in part["per_graph"].values()]
    assert {one["noise_ceiling"] for one in [*figures, *layouts]} == {0.625}
    assert all("0.625" in page.read_text() for page in (finished / "graphs").glob("layout-*.html"))


def test_a_seed_alone_has_what_a_run_of_that_seed_has(finished: Path, smoke_run: Path) -> None:
    alone = json.loads((smoke_run / "report.json").read_text())["collections"]
    both = json.loads((finished / "report.json").read_text())["collections"]
    for name, part in both.items():
        assert part["seed_values"]["0"] == pytest.approx(alone[name]["value"])
        assert alone[name]["seed_values"] == {}
        assert alone[name]["seed_sd"] is None


def write_run(folder: Path, config: str, report: object = None, *, done: bool = False) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config)
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    if done:
        (folder / "DONE").touch()


REPORT = {
    "score": 0.5,
    "revision": "abc",
    "collections": {
        "tile:xla": {"metric": "tile_score", "value": 0.5},
        "layout:xla:default": {"metric": "kendall_tau", "value": None},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    whole = '[recipe]\nname = "cpu"\nseeds = [3, 4]\n'
    write_run(tmp_path / "b", whole, REPORT, done=True)
    write_run(tmp_path / "b" / "models" / "inner", 'model = "x"\nseed = 3\n', done=True)
    write_run(tmp_path / "a" / "deep", 'model = "gcn"\nseed = 7\n[recipe]\nname = "mine"\n')
    write_run(tmp_path / "c", "not toml")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_runs_prints_a_table_and_the_faults(folder: Path) -> None:
    said = call("runs", folder, expect=1)
    lines = said.splitlines()
    assert lines[0].split()[:5] == ["folder", "state", "recipe", "seeds", "revision"]
    assert lines[0].endswith("tile:xla") and "3 4" in lines[2] and "0.5000    0.5000" in lines[2]
    assert lines[-1].startswith(f"error: {folder / 'c'}")
    (folder / "c" / "config.toml").unlink()
    model, whole = json.loads(call("runs", folder, "--json"))
    kaggle = {"public_score": None, "private_score": None}
    finished = whole.pop("finished")
    assert datetime.fromisoformat(finished).timestamp() == pytest.approx(
        (folder / "b" / "report.json").stat().st_mtime, abs=1
    )
    assert model == {
        **{"folder": str(folder / "a/deep"), "state": "unfinished", "recipe": "mine"},
        **{"seeds": [7], "revision": None, "score": None, "values": {}, "finished": None},
        **kaggle,
    }
    assert whole == {
        **{"folder": str(folder / "b"), "state": "done", "recipe": "cpu", "seeds": [3, 4]},
        **{"revision": "abc", "score": 0.5, "values": {"tile:xla": 0.5}, **kaggle},
    }
    assert call("runs", folder / "empty").startswith("no runs")
    assert "no such file or folder" in call("runs", folder / "none", expect=1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "content: not JSON"),
        ('{"collections": 3}', "key 'collections': expected a table"),
        ("[" * 100_000, "content: not JSON: recursion limit exceeded"),
        (
            '{"collections": {"tile:xla": {"value": 1}}}',
            "key 'collections.tile:xla.metric': expected a value",
        ),
        ('{"collections": {}, "score": NaN}', "key 'score': expected a finite number"),
    ],
)
def test_a_damaged_report_is_named(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    line = call("report", "--run", tmp_path, expect=1)
    assert line.startswith(f"error: {tmp_path / 'report.json'}: cannot be read: {said}")


def test_a_run_without_a_report_is_told_what_to_do(tmp_path: Path) -> None:
    """Nor is a pipe in place of a report waited for."""
    write_run(tmp_path / "cut", '[recipe]\nname = "cpu"\n')
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("cut/report.json", "no report; expected the folder of a whole `run` (not of one model)"),
        ("pipe", "cannot be read: not a regular file"),
    ):
        line = call("compare", tmp_path / Path(name).parts[0], tmp_path / "none", expect=1)
        assert line.startswith(f"error: {tmp_path / name}: {said}")


def test_compare_says_which_keys_differ(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    report = json.loads((other / "report.json").read_text())
    report["config"]["recipe"]["layout_boosting"]["learning_rate"] = 0.5
    report["config"]["recipe"]["tgraph"] |= {"hidden": 7, "new": 1}
    report["config"]["recipe"]["features"] |= {"prune": "none", "new": [1]}
    (other / "report.json").write_text(json.dumps(report))
    keys = json.loads(call("compare", run, other, "--json"))["config"]
    rate = json.loads((run / "report.json").read_text())["config"]["recipe"]["layout_boosting"]
    assert keys == {
        "recipe.features.new": [None, [1]],
        "recipe.features.prune": ["hops-1", "none"],
        "recipe.layout_boosting.learning_rate": [rate["learning_rate"], 0.5],
    }
    assert "2 keys of unused models differ too" in call("compare", run, other).splitlines()
    lines = call("compare", run, other).splitlines()[1:]
    assert lines[0].split() == ["key", "first", "second"]
    assert lines[2].split() == ["recipe.features.prune", "hops-1", "none"]
    assert call("compare", run, run).splitlines()[1] == "no key of their configs differs"


def put(folder: Path, *lines: dict[str, float]) -> None:
    folder.mkdir(parents=True)
    (folder / CONFIG).touch()
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves_come_in_the_order_of_the_competition_where_there_are_any(tmp_path: Path) -> None:
    both = ({"step": 1, "loss": 2.0}, {"step": 1, "held_out": 0.5}, {"step": 2, "loss": 1.0})
    models = tmp_path / "models"
    put(models / "layout-nlp-random" / "net-seed0", *both[:1])
    put(models / "layout" / "net-seed3", *both)
    put(models / "tile-xla" / "net-seed0")
    (models / "tile-xla" / "trees-seed0").mkdir()
    lines = ({"step": step, "loss": float(step)} for step in range(1, 10 * MAX_POINTS + 1))
    put(models / "tile-xla" / "long-seed0", *lines)
    first, long, second = learning_curves(tmp_path)
    assert (first.group, second.group) == ("layout", "layout:nlp:random")
    values = {"step": [1, 2], "loss": [2.0, 1.0], "held_out_step": [1], "held_out": [0.5]}
    assert first == LearningCurve(group="layout", member="net-seed3", **values)
    assert (long.step[:2], long.loss[:2], len(long.step)) == ([10, 20], [5.5, 15.5], MAX_POINTS)


@pytest.mark.parametrize("line", ["{", '{"loss": 1}', '{"step": NaN, "loss": 1}', "[" * 100_000])
def test_a_damaged_line_of_a_curve_names_its_file(tmp_path: Path, line: str) -> None:
    net = tmp_path / "models" / "tile-xla" / "net-seed0"
    put(net, {"step": 1, "loss": 1.0})
    with (net / METRICS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PipelineError, match=r"metrics\.jsonl: cannot be used: "):
        learning_curves(tmp_path)


def test_share_of_a_member_counts_only_the_graphs_that_it_ranks() -> None:
    weights = {"net": 1.0, "trees": 1.0, "siblings": 2.0, "unknown": 5.0}
    ranked = {"net": {"a", "b"}, "trees": {"a", "b"}, "siblings": {"b"}, "unknown": set[str]()}
    # "a" has two members with a half each, and "b" has shares of 1/4, 1/4 and 2/4.
    shares = blend_shares(weights, ranked)
    assert shares == {"net": 0.375, "trees": 0.375, "siblings": 0.25, "unknown": 0.0}
