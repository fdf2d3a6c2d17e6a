"""Trainings dealt to several calls: each done once, and the run's bytes as if one had done all."""

import json
import shutil
from pathlib import Path

import pytest

from common.errors import UsageError
from common.locks import alone_in
from data.tree import COLLECTIONS, Collection, GraphFile
from ensembles.members import members_of
from models.config.recipe import load_recipe
from pipeline.run.shards import Shard, dealt, parse_shard, working_as
from pipeline.run.state import Training
from tests.command_line import call

SMALL = ["smoke", "--set", "threads=1", "--set", "seeds=[0,1]"]
SHARED = "cross_config_sage.training.pretrain_steps=2"


def graphs(folder: Path) -> dict[str, list[GraphFile]]:
    """One train graph of each collection, each as large as its place in the list."""
    found = {}
    for number, collection in enumerate(COLLECTIONS, start=1):
        path = folder / f"{collection.slug}.npz"
        path.write_bytes(bytes(number))
        found[collection.name] = [GraphFile(collection, "train", "graph", path)]
    return found


def all_trainings(recipe_keys: list[str]) -> tuple[list[Training], list[str]]:
    recipe = load_recipe("smoke", recipe_keys)
    trainings = [(c, m) for c in COLLECTIONS for m in members_of(recipe, c, Path("out"))]
    return trainings, [*recipe.layout.models, *recipe.tile.models]


def named(trainings: list[tuple[Collection, object]]) -> list[tuple[str, str]]:
    return [(collection.slug, member.name) for collection, member in trainings]  # type: ignore[attr-defined]


@pytest.mark.parametrize("of", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("keys", [[], ["seeds=[0,1,2]"], ["seeds=[0,1]", SHARED]])
def test_every_training_is_dealt_to_one_shard(tmp_path: Path, of: int, keys: list[str]) -> None:
    trainings, _ = all_trainings(keys)
    recipe, usable = load_recipe("smoke", keys), graphs(tmp_path)
    hands = [
        named(dealt(order, Shard(number, of), recipe=recipe, usable=usable))
        for number in range(1, of + 1)
        for order in (trainings if number % 2 else trainings[::-1],)  # every call deals alike
    ]
    assert sorted(name for hand in hands for name in hand) == sorted(named(trainings))
    if SHARED in keys:
        for hand in hands:
            layouts = [name for slug, name in hand if name.startswith("cross_config_sage")]
            assert all(layouts.count(name) == 4 for name in layouts)


@pytest.mark.parametrize(
    "text", ["0/2", "3/2", "1", "1/", "/2", "a/b", "1/2/3", "-1/2", "1/0", "", "٢/٢"]
)
def test_a_shard_is_i_of_n(text: str) -> None:
    with pytest.raises(UsageError, match="1 <= I <= N"):
        parse_shard(text)
    assert parse_shard("2/3") == Shard(2, 3)


def test_shards_share_a_folder_with_each_other_alone(tmp_path: Path) -> None:
    first, second = Shard(1, 2), Shard(2, 2)
    with working_as(first, tmp_path):
        with working_as(second, tmp_path):
            pass
        for other in (lambda: working_as(first, tmp_path), lambda: alone_in(tmp_path)):
            with pytest.raises(UsageError, match="another process works in it"), other():
                pass
    with alone_in(tmp_path), pytest.raises(UsageError), working_as(second, tmp_path):
        pass
    with working_as(first, tmp_path):
        pass


@pytest.mark.parametrize("part", ["npz/tile", pytest.param("npz", marks=pytest.mark.slow)])
def test_two_shards_and_the_rest_give_the_bytes_of_one_run(
    part: str, tiny_tree: Path, tmp_path: Path
) -> None:
    whole, parts, data = tmp_path / "whole", tmp_path / "parts", tmp_path / "data"
    shutil.copytree(tiny_tree / part, data / part)
    arguments = ["run", "--data", data, "--recipe", *SMALL, "--store", tmp_path / "store"]
    if part == "npz/tile":
        arguments += ["--set", "tile.models=[tile_linear,tile_boosting]"]
    call(*arguments, "--out", whole)
    said = call(*arguments, "--out", parts, "--shard", "2/2")
    assert "shard 2/2 is trained" in said
    trained = sorted(path.parent.name for path in parts.glob("models/*/*/DONE"))
    assert 0 < len(trained) < len(list(whole.glob("models/*/*/DONE")))
    first = json.loads(call(*arguments, "--out", parts, "--shard", "1/2", "--json"))
    assert first["shard"] == "1/2"
    assert all((Path(folder) / "DONE").exists() for folder in first["models"])
    before = {path: path.stat().st_mtime_ns for path in parts.glob("models/*/*/*.safetensors")}
    call(*arguments, "--out", parts, "--resume")
    assert before == {path: path.stat().st_mtime_ns for path in before}  # nothing trained again
    for name in ("submission.csv", "submission-valid.csv"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    reports = [json.loads((out / "report.json").read_text()) for out in (whole, parts)]
    assert reports[0]["collections"] == reports[1]["collections"]
    assert set(reports[0]["seconds"]) == set(reports[1]["seconds"])


def test_a_shard_of_no_run_is_refused_in_one_line(tiny_tree: Path, tmp_path: Path) -> None:
    arguments = ["run", "--data", tiny_tree, "--recipe", "smoke", "--out", tmp_path / "out"]
    said = call(*arguments, "--shard", "3/2", expect=2)
    assert "--shard '3/2'" in said
    assert call(*arguments, "--shard", "1/2", "--models", tmp_path, expect=2).count("\n") == 1
    assert not (tmp_path / "out").exists()
