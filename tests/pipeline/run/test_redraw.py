"""`report` draws any run folder: finished, cut off, of one model; and says what is missing."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from models.run_folder import DONE
from submissions.report.curves import RANKS_SCHEMA
from tests.command_line import call


@pytest.fixture(scope="module")
def finished(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    call("run", "--data", tiny_tree, "--recipe", "smoke", "--set", "seeds=[0,1]", "--out", out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_gives_the_same_report_again(run: Path) -> None:
    before = {name: (run / name).read_bytes() for name in ("report.html", "report.png")}
    for name in before:
        (run / name).unlink()
    assert call("report", "--run", run).splitlines() == [
        f"report      {run / 'report.html'}",
        f"picture     {run / 'report.png'}",
    ]
    assert {name: (run / name).read_bytes() for name in before} == before


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
    assert {"prepare and audit", "score", "rank without training"} <= set(report["seconds"])


def test_a_seed_alone_has_what_a_run_of_that_seed_has(
    finished: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "one"
    call("run", "--data", tiny_tree, "--recipe", "smoke", "--set", "seeds=[1]", "--out", out)
    alone = json.loads((out / "report.json").read_text())["collections"]
    both = json.loads((finished / "report.json").read_text())["collections"]
    for name, part in both.items():
        assert part["seed_values"]["1"] == pytest.approx(alone[name]["value"])
        assert alone[name]["seed_values"] == {}
        assert alone[name]["seed_sd"] is None


def test_a_run_that_was_cut_off_is_drawn_with_what_is_missing(run: Path) -> None:
    for name in (DONE, "report.json", "report.html", "submission.csv", "valid-ranks.parquet"):
        (run / name).unlink()
    model = next((run / "models" / "layout-xla-random").glob("cross_config_sage-seed0"))
    (model / DONE).unlink()
    missing = json.loads(call("report", "--run", run, "--json"))["missing_stages"]
    assert missing == [
        "This run has not ended; the same command with --resume goes on with it.",
        "Training has begun and not ended: layout:xla:random cross_config_sage-seed0.",
        "There is no submission yet (submission.csv).",
        "There is no score yet (report.json).",
    ]
    page = (run / "report.html").read_text()
    assert all(line in page for line in missing)
    assert "layout:xla:random: cross_config_sage" in page
    shutil.rmtree(run / "models")
    assert "No model has been trained yet." in call("report", "--run", run)


def test_without_its_scores_a_report_tells_what_the_folder_holds(run: Path) -> None:
    (run / "report.json").unlink()
    assert "report.json is missing, and with it all scores" in call("report", "--run", run)
    page = (run / "report.html").read_text()
    assert "No collection has measured runtimes" not in page
    assert "Every graph that has measured runtimes was judged" not in page
    assert "Nothing has been scored here." in page
    assert "What layout_boosting rests on" in page
    assert "<strong>layout:xla:random</strong>: cross_config_sage-seed0" in page
    assert "prepare and audit" in page


def test_one_model_by_itself_is_drawn(run: Path) -> None:
    model = run / "models" / "layout-xla-random" / "cross_config_sage-seed0"
    assert "One model by itself" in call("report", "--run", model)
    assert "at the end: cross_config_sage-seed0" in (model / "report.html").read_text()


def test_faults_are_one_line(run: Path, tmp_path: Path) -> None:
    assert "no such folder" in call("report", "--run", tmp_path / "none", expect=1)
    (run / "report.json").write_text('{"collections": {"tile:xla": {"metric": "tile_score"}}}')
    output = call("report", "--run", run, expect=1)
    assert output == f"error: {run / 'report.json'}: cannot be drawn: KeyError('value'); " + (
        "expected what `run` writes\n"
    )
