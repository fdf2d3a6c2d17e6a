"""Which runs may rank: a finished one always, an unfinished one where its end changes nothing."""

import shutil
from pathlib import Path

import pytest

from data.tree import find_graphs
from models.run_folder import mark_done
from tests.command_line import call

MODELS = ('layout.models=["layout_linear", "layout_boosting"]', 'tile.models=["tile_linear"]')


@pytest.fixture(scope="module")
def tree(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layout collections; the second has nothing to learn from."""
    folder = tmp_path_factory.mktemp("data")
    for part in ("default", "random/test"):
        shutil.copytree(tiny_tree / "npz/layout/xla" / part, folder / "npz/layout/xla" / part)
    return folder


@pytest.fixture
def finished(tree: Path, tmp_path: Path) -> Path:
    settings = [part for text in MODELS for part in ("--set", text)]
    call("run", "--data", tree, "--recipe", "smoke", *settings, "--out", tmp_path / "run")
    return tmp_path / "run"


def untimed(printed: str) -> str:
    """What `rank` printed without the line that tells how long it took."""
    table, inference, rest = printed.rpartition("inference  ")
    assert inference
    assert "ms per config" in rest
    return table


def test_an_unfinished_run_ranks_only_what_its_end_cannot_change(
    finished: Path, tree: Path, tmp_path: Path
) -> None:
    default, random = (
        next(f.path for f in find_graphs(tree, splits=("test",)) if f.collection.name == name)
        for name in ("layout:xla:default", "layout:xla:random")
    )
    rank_default, rank_random = (("rank", file, "--run", finished) for file in (default, random))
    whole, borrowed = untimed(call(*rank_default)), call(*rank_random)
    assert "layout_linear-seed0, layout_boosting-seed0" in borrowed
    (finished / "DONE").unlink()
    assert untimed(call(*rank_default)) == whole  # all that ranks it is there
    said = call(*rank_random, expect=1)  # who ranks it is not settled
    assert "layout_linear-seed0, layout_boosting-seed0 of layout:xla:random" in said
    (finished / "models/layout-xla-default/layout_boosting-seed0/DONE").unlink()
    predicting = ("predict", "--run", finished, "--data", tree)
    for words in (rank_default, (*predicting, "--collection", "layout:xla:default")):
        said = call(*words, expect=1)
        assert said.startswith(f"error: {finished}: an unfinished run: layout_boosting-seed0 of")
        assert f"`run … --out {finished} --resume`" in said
        assert said.count("\n") == 1


def test_an_unfinished_run_that_shall_choose_its_blend_has_to_choose_first(
    finished: Path, tree: Path
) -> None:
    config = finished / "config.toml"
    changed = config.read_bytes().replace(b"choose = false", b"choose = true")
    config.write_bytes(changed)
    mark_done(finished)
    file = find_graphs(tree, splits=("test",))[0]
    call("rank", file.path, "--run", finished)
    (finished / "DONE").unlink()
    assert "the blend of layout:xla:default is not chosen yet" in call(
        "rank", file.path, "--run", finished, expect=1
    )


def test_a_folder_of_models_names_them(tree: Path, finished: Path) -> None:
    file = find_graphs(tree, splits=("test",))[0]
    models = finished / "models/layout-xla-default"
    said = call("rank", file.path, "--run", models, expect=1)
    assert f"{models}: not a run folder, but holds such: layout_boosting-seed0, layout_lin" in said
    none = call("rank", file.path, "--run", models / "none", expect=1)
    assert f"{models / 'none'}: no such folder" in none
