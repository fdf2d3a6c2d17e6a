"""`layout.together`: one model learns from all layout collections, and ranks each of them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from data.families import family_of, grouped_folds
from data.graph_store.stored_graph import fingerprint, read_graph
from data.graphs.graph import distinct_configs
from data.labels import split_usable
from data.tree import LAYOUT_COLLECTIONS, Collection, GraphFile, find_graphs
from ensembles.ensemble import load_ranker
from kernels.datasets import write_weights
from models.config.recipe import load_recipe
from models.run_folder import read_config
from pipeline.tuning.objective import TuningObjective
from pipeline.tuning.space import space_from_table
from submissions.check import read_submission
from tests.support.command_line import call, stderr_of

KEYS = (
    "layout.together=true",
    "layout.models=[cross_config_sage, layout_linear]",
    "tile.models=[tile_linear]",
)
SETS = tuple(word for key in KEYS for word in ("--set", key))
MEMBERS = ["cross_config_sage-seed0", "layout_linear-seed0"]
RECIPE = load_recipe("smoke", KEYS)
*LEARNED, UNTAUGHT = LAYOUT_COLLECTIONS


@pytest.fixture(scope="module")
def tree(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny tree without the train graphs of the last layout collection."""
    folder = tmp_path_factory.mktemp("together") / "tree"
    shutil.copytree(tiny_tree, folder)
    shutil.rmtree(folder / "npz" / UNTAUGHT.folder / "train")
    return folder


@pytest.fixture(scope="module")
def words(tree: Path) -> tuple[object, ...]:
    return ("--recipe", "smoke", *SETS, "--data", tree)


@pytest.fixture(scope="module")
def told(words: tuple[object, ...], tree: Path) -> list[str]:
    return stderr_of("run", *words, "--out", tree.parent / "run")


@pytest.fixture(scope="module")
def finished(told: list[str], tree: Path) -> Path:
    """A finished run; read it, never write to it."""
    return tree.parent / "run"


def test_each_member_is_trained_once_and_ranks_all(
    finished: Path, told: list[str], tree: Path
) -> None:
    folders = sorted(str(p.parent.relative_to(finished)) for p in finished.glob("models/*/*/DONE"))
    layouts = [f"models/layout/{name}" for name in MEMBERS]
    assert folders == [*layouts, "models/tile-xla/tile_linear-seed0"]
    usable, _ = split_usable(find_graphs(tree, collections=LAYOUT_COLLECTIONS, splits=("train",)))
    assert {file.collection for file in usable} == set(LEARNED)
    for folder in layouts:
        config = read_config(finished / folder)
        assert config["collections"] == [collection.name for collection in LEARNED]
    trained = [line for line in told if line.startswith("stage: train") and " on layout," in line]
    assert len(trained) == len(MEMBERS)
    report = json.loads((finished / "report.json").read_text())
    for collection in LAYOUT_COLLECTIONS:
        assert report["models"][collection.name]["members"] == MEMBERS
        assert report["collections"][collection.name]["value"] is not None
    borrowed = report["models"][UNTAUGHT.name]
    assert borrowed["fallback_from"] == "layout:nlp:default"
    assert borrowed["reason"] == "no train split"
    assert report["models"][LEARNED[0].name]["fallback_from"] is None
    curves = [(curve["group"], curve["member"]) for curve in report["learning_curves"]]
    assert curves == [("layout", MEMBERS[0])]


@pytest.mark.parametrize("collection", [LEARNED[0], UNTAUGHT])
def test_rank_takes_it_for_any_layout_collection(
    collection: Collection, finished: Path, tree: Path
) -> None:
    assert list(load_ranker(finished, collection=collection.name).rankers) == MEMBERS
    file = find_graphs(tree, collections=(collection,), splits=("test",))[0]
    ranking = read_submission(finished / "submission.csv")[file.submission_id]
    _, group = distinct_configs(read_graph(file))
    best = ranking[np.sort(np.unique(group[ranking], return_index=True)[1])][:3].tolist()
    asked = ("--collection", collection.name, "--top", 3, "--json")
    ranked = json.loads(call("rank", file.path, "--run", finished, *asked))
    assert [config["config"] for config in ranked["configs"]] == best
    one = finished / "models" / "layout" / MEMBERS[0]
    assert MEMBERS[0] in call("rank", file.path, "--run", one, *asked[:-1])
    tile = find_graphs(tree, splits=("train",))[0]
    assert "ranks layout configs, not tile:xla" in call("rank", tile.path, "--run", one, expect=1)


def test_train_learns_from_all_whichever_is_named_and_run_takes_what_it_left(
    finished: Path, words: tuple[object, ...], tree: Path, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    call("train", *words, "--collection", UNTAUGHT.name, "--out", parts / "a")
    call("train", *words, "--collection", "tile:xla", "--out", parts / "b")
    weights = tmp_path / "weights"
    names = [f"layout/{name}" for name in MEMBERS]
    assert write_weights(parts, weights, title="Weights") == [*names, "tile-xla/tile_linear-seed0"]
    untaught = shutil.copytree(tree, tmp_path / "tree")
    for train in list(untaught.rglob("train")):
        shutil.rmtree(train)  # not needed any more
    call("run", *words, "--data", untaught, "--models", weights, "--out", tmp_path / "given")
    splits = read_config(finished)["data"]
    assert read_config(tmp_path / "given")["data"] == {k: splits[k] for k in ("test", "valid")}
    for name in ("submission.csv", "submission-valid.csv"):
        assert (tmp_path / "given" / name).read_bytes() == (finished / name).read_bytes()
    one = parts / "a" / MEMBERS[1]
    predict = ("predict", "--data", tree, "--run", one, "--split", "test")
    assert "ranks more than one collection; pass --collection" in call(*predict, expect=2)
    call(*predict, "--collection", LEARNED[1].name, "--out", tmp_path / "scores.parquet")
    again = ("train", *words, "--collection", LEARNED[0].name, "--out", tmp_path / "again")
    assert call(*again, "--resume-from", parts).count("continues an earlier training") == 2


def test_a_fold_learns_from_all_but_its_families(tiny_tree: Path, tmp_path: Path) -> None:
    files: list[GraphFile] = find_graphs(
        tiny_tree, collections=LAYOUT_COLLECTIONS, splits=("train",)
    )
    folds = grouped_folds([file for file in files if file.collection == LEARNED[0]], 2, seed=0)
    study = {"collection": LEARNED[0].name, "model": "layout_linear"}
    table = {"study": study, "layout_linear.penalty": {"low": 0.1, "high": 1.0}}
    space = space_from_table(table, RECIPE, source="space")
    TuningObjective(RECIPE, space, files, folds, tmp_path).cross_validate(RECIPE, tmp_path)
    for number, held_out in enumerate(folds):
        families = set(map(family_of, held_out))
        others = [file for file in files if family_of(file) not in families]
        assert read_config(tmp_path / f"fold-{number}")["train_data"] == fingerprint(others)
