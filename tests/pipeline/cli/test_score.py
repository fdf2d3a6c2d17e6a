"""The command `score` on a small tree: ceilings and comparison."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.settings import default_store_dir
from data.graph_store.prepare import stored_graphs
from data.withheld import WITHHELD, write_withheld
from submissions.compare import compare_reports
from submissions.labels import read_ceilings, read_labels
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


def test_the_ceiling_is_a_column_and_in_json_unless_refused(tree: Path) -> None:
    labels = read_labels(tree, "valid")
    ceilings = read_ceilings(stored_graphs(tree, splits=("valid",)), labels)
    assert len(ceilings) == 3
    rankings = read_submission(tree / "seed0.csv")
    assert scored(tree, *one(tree)) == score_submission(rankings, labels, ceilings=ceilings)
    assert scored(tree, *one(tree), "--no-ceiling") == score_submission(rankings, labels)
    table = call("score", "--data", tree, *one(tree)).splitlines()
    header = next(line for line in table if line.startswith("collection"))
    row = next(line for line in table if line.startswith(X + " "))
    assert header.split()[-1] == "ceiling"
    assert any(line.startswith("mean of 2 of 5 ") for line in table)
    expected = np.median([ceilings[f"{X}:a"], ceilings[f"{X}:b"]])
    assert row.split()[-1] == f"{expected:.4f}"
    assert "ceiling" not in call("score", "--data", tree, *one(tree), "--no-ceiling")


def test_withheld_runtimes_have_a_ceiling_too(tree: Path) -> None:
    graph = scored(tree, *one(tree, "test"), "--private")["collections"][X]["per_graph"]["t"]
    with np.load(tree / "npz/layout/xla/default/test/t.npz") as arrays:
        assert not arrays["config_runtime"].any()
    assert 0.3 < graph["noise_ceiling"] < 0.95
    assert scored(tree, *one(tree, "test"), "--split", "test")["score"] is None
    told = "the runtimes of split test are withheld; --private reads the sample's"
    said = stderr_of("score", "--data", tree, *one(tree, "test"), "--split", "test")
    assert any(told in line for line in said)


def test_only_collections_that_are_judged_are_packed(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    scored(copy, *one(copy, "part"), "--no-ceiling")
    scored(copy, *one(copy, "test"), "--split", "test")  # withheld: nothing is judged
    store = default_store_dir(copy)
    assert not list(store.rglob("*.safetensors"))
    scored(copy, *one(copy, "part"))
    found = sorted(str(path.relative_to(store)) for path in store.rglob("*.safetensors"))
    assert found == [f"layout/xla/default/valid/{name}.safetensors" for name in "ab"]


def test_where_graphs_cannot_be_read_there_are_scores_without_ceilings(
    tree: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    shutil.rmtree(copy / "npz" / "layout/xla/default/test")
    said = stderr_of("score", "--data", copy, *one(copy, "test"), "--private")
    (remark,) = [line for line in said if not line.startswith("stage: ")]
    assert remark.startswith("no noise ceilings: ")
    report = scored(copy, *one(copy, "test"), "--private")
    assert report["score"] is not None
    assert "noise_ceiling" not in str(report)


def test_against_compares_graph_by_graph(tree: Path) -> None:
    found = scored(tree, *one(tree), "--against", tree / "seed1.csv")
    first, second = scored(tree, *one(tree, "seed1")), scored(tree, *one(tree))
    expected = compare_reports(first, second)
    comparison = found.pop("comparison")
    assert found == second
    assert comparison == {
        "first": str(tree / "seed1.csv"),
        "second": str(tree / "seed0.csv"),
        **json.loads(json.dumps(expected)),
    }
    assert comparison["mean"]["difference"] == pytest.approx(second["score"] - first["score"])
    text = call("score", "--data", tree, *one(tree), "--against", tree / "seed1.csv")
    alone = call("score", "--data", tree, *one(tree))
    assert text.startswith(alone)
    assert "P(second better)" in text and "P(second better)" not in alone
    for name, report in zip(("one", "two"), (first, second), strict=True):
        (tree / f"{name}.json").write_text(json.dumps(report))
    table = call("compare", tree / "one.json", tree / "two.json")
    assert text.endswith(table)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--against", "nosuch.csv"), "nosuch.csv"),
        (("--against", "short.csv"), f"short.csv: {X}:b: row is"),
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
