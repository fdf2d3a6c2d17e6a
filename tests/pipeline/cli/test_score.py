"""The command `score` on a small tree, and what `compare` makes of its reports."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from common.settings import default_store_dir
from data.withheld import WITHHELD, write_withheld
from submissions.compare import compare_reports
from submissions.labels import read_labels
from submissions.score import score_submission
from submissions.write import read_submission
from tests.command_line import call, stderr_of
from tests.submissions.made_up import noisy_submission, write_graph

X, N = "layout:xla:default", "layout:nlp:random"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labelled layout graphs, a test graph with withheld runtimes, and submissions."""
    folder = tmp_path_factory.mktemp("score") / "tree"
    valid = {}
    for seed, (collection, name) in enumerate(((X, "a"), (X, "b"), (N, "n"))):
        valid[f"{collection}:{name}"], _ = write_graph(folder, collection, "valid", name, seed=seed)
    withheld, _ = write_graph(folder, X, "test", "t", seed=7, labelled=False)
    write_withheld(folder / WITHHELD, {f"{X}:t": withheld})
    for seed in range(3):
        noisy_submission(folder / f"seed{seed}.csv", valid, seed=seed)
    noisy_submission(folder / "part.csv", {k: v for k, v in valid.items() if X in k}, seed=9)
    noisy_submission(folder / "test.csv", {f"{X}:t": withheld}, seed=3)
    return folder


def scored(tree: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("score", "--data", tree, *arguments, "--json"))
    return found


def one(tree: Path, name: str = "seed0") -> tuple[object, ...]:
    return ("--submission", tree / f"{name}.csv")


def test_a_submission_is_judged_and_two_reports_are_compared(tree: Path) -> None:
    found = scored(tree, *one(tree))
    rankings = read_submission(tree / "seed0.csv")
    assert found == score_submission(rankings, read_labels(tree, "valid"))
    table = call("score", "--data", tree, *one(tree)).splitlines()
    assert any(line.startswith("mean of 2 of 5 ") for line in table)
    first = scored(tree, *one(tree, "seed1"))
    for name, report in zip(("one", "two"), (first, found), strict=True):
        (tree / f"{name}.json").write_text(json.dumps(report))
    files = (tree / "one.json", tree / "two.json")
    compared = json.loads(call("compare", *files, "--json"))
    assert {"first", "second", "config"} <= compared.keys()
    expected = json.loads(json.dumps(compare_reports(first, found)))
    assert {key: compared[key] for key in expected} == expected
    assert compared["mean"]["difference"] == pytest.approx(found["score"] - first["score"])
    assert "P(second better)" in call("compare", *files)
    assert "other seeds of a recipe" in stderr_of("compare", *files)[0]


def test_withheld_runtimes_are_read_if_asked_for(tree: Path) -> None:
    graph = scored(tree, *one(tree, "test"), "--private")["collections"][X]["per_graph"]["t"]
    assert graph["kendall_tau"] is not None
    told = "test has no runtimes; --private reads the sample's"
    said = stderr_of("score", "--data", tree, *one(tree, "test"), "--split", "test", expect=1)
    assert len(said) == 1 and told in said[0]
    assert not list(default_store_dir(tree).rglob("*.safetensors"))  # nothing is packed for it


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--submission", "nosuch.csv"), "nosuch.csv"),
        (("--submission", "short.csv"), f"short.csv: {X}:b: row is"),
        (("--private",), "private"),
    ],
)
def test_faults_are_one_line(
    tree: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    folder = tmp_path / "tree"
    shutil.copytree(tree, folder)
    shutil.rmtree(folder / "private")
    lines = (folder / "seed0.csv").read_text().splitlines()
    short = [line for line in lines if not line.startswith(f"{X}:b")]
    (folder / "short.csv").write_text("\n".join(short))
    given = [str(folder / part) if "." in part else part for part in arguments]
    text = call("score", "--data", folder, *one(folder), *given, expect=1)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert named in text
