"""`submission` and `score` as a user calls them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.settings import SAMPLE, default_store_dir
from data.labels import WITHHELD, Labels, read_labels, write_withheld
from submissions.check import SubmissionRow, expected_rows, read_submission, write_submission
from submissions.score import score_submission
from tests.submissions.made_up import (
    noisy_submission,
    official_lines,
    place_npz,
    write_graph,
    write_official,
)
from tests.submissions.test_report import Page
from tests.support.command_line import call, stderr_of
from tests.support.fake_kaggle import FIRST_REF, KEY, SIGNATURE, FakeKaggle


@pytest.fixture(autouse=True)
def no_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    monkeypatch.setattr("common.settings.RAW_DATA", Path("nowhere"))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    write_official(folder / "submission.csv")
    return folder


def upload(run_folder: Path, *more: object, expect: int = 0) -> str:
    arguments = ("submission", "upload", run_folder / "submission.csv", "-m", "first try", *more)
    text = call(*arguments, expect=expect)
    assert KEY not in text
    assert SIGNATURE not in text
    return text


def test_a_submission_is_sent_and_listed_with_its_tag(
    fake_kaggle: FakeKaggle, run_folder: Path
) -> None:
    size = (run_folder / "submission.csv").stat().st_size
    sent = upload(run_folder)
    where = f"({size} bytes) to predict-ai-model-runtime as submission {FIRST_REF}\n"
    assert f"uploaded    {run_folder}/submission.csv {where}" in sent
    assert "`submission list` shows it" in sent
    again = json.loads(upload(run_folder, "--force", "--json"))
    assert (again["ref"], again["size_bytes"]) == (FIRST_REF + 1, size)
    (row,) = json.loads(call("submission", "list", "--json", "--limit", "1"))
    told = (row["ref"], row["status"], row["submitted_at"])
    assert told == (FIRST_REF + 1, "complete", "2026-02-03 04:05")
    assert (row["public_score"], row["private_score"]) == (0.7125, 0.7031)
    assert row["message"].startswith("first try [sha256:")
    assert "0.7125" in call("submission", "list")


def test_scores_of_kaggle_are_stored_in_the_run_whose_file_was_sent(
    fake_kaggle: FakeKaggle, run_folder: Path
) -> None:
    runs, score = run_folder.parent, {"metric": "tile_score", "value": 0.5}
    report = {"score": 0.5, "collections": {"tile:xla": score}}
    other = shutil.copytree(run_folder, runs / "other")
    (other / "submission.csv").write_text("ID,TopConfigs\n")
    for folder in (run_folder, other):
        (folder / "config.toml").write_text('[recipe]\nname = "cpu"\n')
        (folder / "report.json").write_text(json.dumps(report))
    upload(run_folder)
    n_requests = len(fake_kaggle.received)
    assert "public" not in call("runs", runs)
    assert f"`runs {runs}` shows the scores of 1" in call("submission", "list", "--runs", runs)
    fake_kaggle.submissions.clear()
    call("submission", "list", "--runs", runs)  # an older submission is not in the list
    n_listed = len(fake_kaggle.received)
    assert n_listed > n_requests
    rows = {row["folder"]: row for row in json.loads(call("runs", runs, "--json"))}
    scores = [(row["public_score"], row["private_score"]) for row in rows.values()]
    assert [*rows] == [str(run_folder), str(other)]
    assert scores == [(0.7125, 0.7031), (None, None)]
    page = runs / "runs.html"
    header, line, _ = call("runs", runs, "--html", page).splitlines()[:3]
    assert header.split()[5:8] == ["score", "public", "private"] and "0.7125" in line
    assert len(fake_kaggle.received) == n_listed
    means, by_collection = Page(page.read_text()).charts
    assert [*means["groups"]] == ["valid, mean of 1", "Kaggle, public", "Kaggle, private"]
    assert means["groups"]["Kaggle, private"]["y"] == [0.7031]
    assert by_collection["groups"]["tile:xla"]["names"] == [str(run_folder), str(other)]
    # The run was repeated, so the score is of another file.
    shutil.copy(other / "submission.csv", run_folder)
    assert "public" not in call("runs", runs)
    (run_folder / "kaggle-scores.json").write_text("{")
    assert "kaggle-scores.json: cannot be read: content" in call("runs", runs, expect=1)


def test_a_page_of_runs_needs_a_score(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    words = ("runs", tmp_path / "runs", "--html")
    assert "no run has a score" in call(*words, tmp_path / "a.html", expect=1)
    assert "expected a name that ends in .html" in call(*words, tmp_path / "a.png", expect=2)
    assert [*tmp_path.iterdir()] == [tmp_path / "runs"]
    missing = call("submission", "list", "--runs", tmp_path / "no", expect=1)
    assert f"{tmp_path / 'no'}: no such file or folder" in missing


def test_a_bad_file_is_told_as_the_check_does_and_nothing_is_sent(
    fake_kaggle: FakeKaggle, run_folder: Path
) -> None:
    write_official(run_folder / "submission.csv", official_lines()[:-2])
    told = upload(run_folder, "--force", expect=1).splitlines()
    assert "layout:nlp:random: 2 of 17 rows are missing, for example" in told[0]
    checked = call("submission", "check", run_folder / "submission.csv", expect=1).splitlines()
    assert told == [*checked[1:], f"error: {run_folder}/submission.csv: nothing was sent"]
    assert not fake_kaggle.received


@pytest.mark.parametrize("has_data", [False, True])
def test_the_answer_to_the_sample_is_called_that(
    fake_kaggle: FakeKaggle, run_folder: Path, has_data: bool
) -> None:
    # A data folder without a test split has no answers, so the sample judges the file.
    data = run_folder.parent / "data"
    place_npz(data, "tile/xla/train", "mine", config_runtime=np.ones(3, np.int64))
    counts = expected_rows(SAMPLE, "test").items()
    rows = [SubmissionRow(x, np.arange(n if "layout" in x else min(n, 5))) for x, n in counts]
    write_submission(run_folder / "submission.csv", rows)
    text = upload(run_folder, *(("--data", data) if has_data else ()), expect=1)
    assert f"submission.csv: answers the test graphs of {SAMPLE}, not the competition's" in text
    assert not fake_kaggle.received


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_answers_other_data_is_never_sent(
    fake_kaggle: FakeKaggle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path))
    options = ("--data", tmp_path) if named else ()
    # One graph of the competition is not all of it.
    official = official_lines()[500]
    for line in ("tile:xla:mine,2;0;1", official):
        shutil.rmtree(tmp_path / "npz", ignore_errors=True)
        name = line.partition(",")[0].removeprefix("tile:xla:")
        n_configs = 7 if line == official else 3
        runtimes = np.zeros(n_configs, np.int64)
        place_npz(tmp_path, "tile/xla/test", name, config_runtime=runtimes)
        write_official(tmp_path / "submission.csv", [line])
        text = upload(tmp_path, *options, "--force", expect=1)
        fault = f"answers the test graphs of {tmp_path}, not the competition's"
        assert text.startswith(f"error: {tmp_path}/submission.csv: {fault}\n")
    assert not fake_kaggle.received


X, N = "layout:xla:default", "layout:nlp:random"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labelled layout graphs, a test graph with withheld runtimes, and submissions."""
    folder = tmp_path_factory.mktemp("score") / "tree"
    valid = {}
    for seed, (collection, name) in enumerate(((X, "a"), (X, "b"), (N, "n"))):
        valid[f"{collection}:{name}"], _ = write_graph(folder, collection, "valid", name, seed=seed)
    withheld, _ = write_graph(folder, X, "test", "t", seed=7, labelled=False)
    write_withheld(folder / WITHHELD, {f"{X}:t": Labels(withheld)})
    noisy_submission(folder / "seed0.csv", valid, seed=0)
    noisy_submission(folder / "test.csv", {f"{X}:t": withheld}, seed=3)
    return folder


def scored(tree: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("score", "--data", tree, *arguments, "--json"))
    return found


def one(tree: Path, name: str = "seed0") -> tuple[object, ...]:
    return ("--submission", tree / f"{name}.csv")


def test_a_submission_is_judged(tree: Path) -> None:
    found = scored(tree, *one(tree))
    rankings = read_submission(tree / "seed0.csv")
    assert found == score_submission(rankings, read_labels(tree, "valid")).as_json()
    command = ("score", "--data", tree, *one(tree))
    table = call(*command).splitlines()
    assert table[0].startswith("collection ") and table[6].startswith("mean of 2 of 5 ")
    assert not any(f"{X}:a" in line for line in table)
    _, graphs = call(*command, "--graphs").split("\n\n")
    header, *rows = [line.split() for line in graphs.splitlines()]
    assert header == ["graph", "metric", "value"]
    assert rows == [
        [f"{collection}:{graph}", "kendall_tau", f"{metrics['kendall_tau']:.4f}"]
        for collection, part in found["collections"].items()
        for graph, metrics in part["per_graph"].items()
    ]


def test_withheld_runtimes_are_read_if_asked_for(tree: Path) -> None:
    graph = scored(tree, *one(tree, "test"), "--private")["collections"][X]["per_graph"]["t"]
    assert graph["kendall_tau"] is not None
    told = "test has no runtimes; --private reads the sample's"
    said = stderr_of("score", "--data", tree, *one(tree, "test"), "--split", "test", expect=1)
    assert len(said) == 1 and told in said[0]
    assert not list(default_store_dir(tree).rglob("*.safetensors"))  # nothing is packed for it


OTHER = "answers no graph of split {0}; expected the run's submission for {0}, or another --split"


@pytest.mark.parametrize(
    ("file", "options", "split"),
    [("test.csv", (), "valid"), ("seed0.csv", ("--private",), "test")],
)
def test_another_splits_rankings_are_named(
    tree: Path, file: str, options: tuple[str, ...], split: str
) -> None:
    path = tree / file
    text = call("score", "--submission", path, "--data", tree, *options, expect=1)
    assert text == f"error: {path}: {OTHER.format(split)}\n"
    told = stderr_of("submission", "check", path, "--data", tree, "--split", split, expect=1)
    assert told == [text.strip()]


def test_faults_are_one_line(tree: Path, tmp_path: Path) -> None:
    lines = (tree / "seed0.csv").read_text().splitlines()
    short = tmp_path / "short.csv"
    short.write_text("\n".join(line for line in lines if not line.startswith(f"{X}:b")))
    bare = tmp_path / "bare"
    shutil.copytree(tree / "npz", bare / "npz")
    other_split = (*one(tree, "test"), "--private", "--split", "valid")
    for data, words, code, fault in (
        (tree, ("--submission", tree / "nosuch.csv"), 1, "nosuch.csv"),
        (tree, ("--submission", short), 1, f"short.csv: {X}:b: row is"),
        (bare, (*one(tree), "--private"), 1, "private"),
        (tree, other_split, 2, "--private judges the test split; leave"),
    ):
        text = call("score", "--data", data, *words, expect=code)
        assert text.startswith("error: ") and text.count("\n") == 1 and fault in text
