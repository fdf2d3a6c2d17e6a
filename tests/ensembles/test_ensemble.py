"""Which runs may rank, finished ones alone; and whose models, in the documented order."""

import shutil
from pathlib import Path

import pytest

from data.tree import COLLECTIONS, Collection, collection_named, find_graphs
from ensembles.ensemble import Source, choose_source, load_ranker
from models.graph_task import NetworkRanker
from models.run_folder import mark_done
from tests.ensembles.programs import LAYOUT_MODEL
from tests.support.command_line import call

ORDER = {
    "tile:xla": [],
    "layout:xla:default": ["layout:xla:random", "layout:nlp:default", "layout:nlp:random"],
    "layout:xla:random": ["layout:xla:default", "layout:nlp:random", "layout:nlp:default"],
    "layout:nlp:default": ["layout:nlp:random", "layout:xla:default", "layout:xla:random"],
    "layout:nlp:random": ["layout:nlp:default", "layout:xla:random", "layout:xla:default"],
}
MODELS = ('layout.models=["layout_linear", "layout_boosting"]', 'tile.models=["tile_linear"]')


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_own_models_rank_else_the_nearest_siblings_else_a_heuristic(collection: Collection) -> None:
    name = collection.name
    assert choose_source(collection, set(ORDER), {}) == Source(collection, None)
    for place, expected in enumerate(ORDER[name]):
        trainable = {*ORDER[name][place:], "tile:xla"}
        source = choose_source(collection, trainable, {name: "it is noise"})
        assert source == Source(collection_named(expected), "it is noise")
    strangers = {"tile:xla"} if name.startswith("layout") else set(ORDER) - {"tile:xla"}
    for trainable in (strangers, set()):
        source = choose_source(collection, trainable, {})
        assert source.collection is None
        assert source.reason == (
            "no train split; and no sibling collection has anything to learn from"
        )


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    """Two layout collections; the second has nothing to learn from."""
    folder = tmp_path / "data"
    for part in ("default", "random/test"):
        shutil.copytree(tiny_tree / "npz/layout/xla" / part, folder / "npz/layout/xla" / part)
    return folder


def test_an_unfinished_run_and_a_folder_of_models_are_refused(tree: Path, tmp_path: Path) -> None:
    settings, finished = [part for text in MODELS for part in ("--set", text)], tmp_path / "run"
    call("run", "--data", tree, "--recipe", "smoke", *settings, "--out", finished)
    default, random = (
        next(f.path for f in find_graphs(tree, splits=("test",)) if f.collection.name == name)
        for name in ("layout:xla:default", "layout:xla:random")
    )
    borrowed = call("rank", random, "--run", finished)
    assert "layout_linear-seed0, layout_boosting-seed0" in borrowed
    (finished / "DONE").unlink()
    predicting = ("predict", "--run", finished, "--data", tree)
    for words in (
        ("rank", default, "--run", finished),
        (*predicting, "--collection", "layout:xla:default"),
    ):
        said = call(*words, expect=1)
        assert said.startswith(f"error: {finished}: an unfinished run; finish it with")
        assert f"`run … --out {finished} --resume`" in said
        assert said.count("\n") == 1
    models = finished / "models/layout-xla-default"
    said = call("rank", default, "--run", models, expect=1)
    assert (
        f"{models}: not a run folder, but contains such: layout_boosting-seed0, layout_lin" in said
    )
    none = call("rank", default, "--run", models / "none", expect=1)
    assert f"{models / 'none'}: no such file or folder" in none


def test_a_model_ranks_with_as_many_threads_as_its_recipe_says(
    rankers: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(rankers / LAYOUT_MODEL, tmp_path / "two")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("threads = 1\n", "threads = 2\n"))
    mark_done(folder)
    (ranker,) = load_ranker(folder).rankers.values()
    assert isinstance(ranker, NetworkRanker) and ranker.threads == 2
