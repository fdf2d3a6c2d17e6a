"""Models trained elsewhere: found at any depth, taken whole, refused where one does not fit."""

import shutil
from pathlib import Path

import pytest

from common.errors import PipelineError
from data.tree import collection_named
from ensembles.trained_models import continue_earlier, find_models, models_to_take, take_models
from models.config.recipe import load_recipe
from models.run_folder import is_done
from tests.support.command_line import call

TILE, XLA = collection_named("tile:xla"), collection_named("layout:xla:random")
RECIPE = load_recipe("smoke", ["threads=1", 'tile.models=["tile_linear"]'])


@pytest.fixture(scope="module")
def trained(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained tile model somewhere in it."""
    out = tmp_path_factory.mktemp("trained")
    overrides = ["--set", "threads=1", "--set", 'tile.models=["tile_linear"]']
    arguments = ["--data", tiny_tree, "--recipe", "smoke", "--collection", "tile:xla"]
    call("train", *arguments, *overrides, "--out", out / "someone" / "deep" / "folder")
    return out


def write_model(folder: Path, *, done: bool, place: str = 'collection = "tile:xla"') -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'model = "a"\nseed = 0\n{place}\n')
    (folder / "checkpoint.safetensors").write_bytes(b"state")
    (folder / ".lock").write_bytes(b"")
    if done:
        (folder / "DONE").write_text("done\n")
    return folder


def test_models_are_known_by_their_configuration(trained: Path, tmp_path: Path) -> None:
    root = tmp_path / "input"
    root.mkdir()
    (root / "a").symlink_to(trained)
    write_model(root / ".hidden", done=True)
    write_model(root / "s", done=False, place='collections = ["layout:xla:random"]')
    (root / "run").mkdir()
    (root / "run" / "config.toml").write_text('[recipe]\nname = "a whole run"\n')
    (root / "circle").symlink_to(root)
    found = {(*key, is_done(folder)) for key, folder in find_models(root).items()}
    assert found == {("tile-xla", "tile_linear-seed0", True), ("layout", "a-seed0", False)}


def test_taken_models_can_be_written_to_and_stay_whatever_lies_in_the_source(
    trained: Path, tmp_path: Path
) -> None:
    run, source = tmp_path / "run", tmp_path / "in"
    shutil.copytree(trained, source / "weights")
    for path in source.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    take_models(models_to_take(source, RECIPE, [TILE], run))
    model = run / "models" / "tile-xla" / "tile_linear-seed0"
    assert list(model.parent.iterdir()) == [model]
    assert all(path.stat().st_mode & 0o200 for path in model.iterdir())
    for path in source.rglob("*"):
        path.chmod(0o755)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    shutil.copytree(run, source / "earlier")  # the run's own copy, attached
    (next(source.glob("weights/**/DONE")).parent / "metrics.jsonl").write_text("trained again")
    next(source.glob("earlier/**/DONE")).unlink()
    for left in ("weights", "earlier"):
        take_models(models_to_take(source, RECIPE, [TILE], run))
        assert {path.name: path.read_bytes() for path in model.iterdir()} == before
        shutil.rmtree(source / left)
    with pytest.raises(PipelineError, match="no trained model"):  # a run without its own
        take_models(models_to_take(source, RECIPE, [TILE], tmp_path / "other"))


def test_target_of_a_link_is_not_copied(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "in")
    (folder,) = find_models(tmp_path / "in").values()
    (tmp_path / "private").write_text("private")
    (folder / "more.json").symlink_to(tmp_path / "private")
    with pytest.raises(PipelineError, match=r"more\.json: is hidden or a link"):
        take_models(models_to_take(tmp_path / "in", RECIPE, [TILE], tmp_path / "run"))
    assert not list((tmp_path / "run").rglob("*.json"))


@pytest.mark.parametrize(
    "place", ['collection = "../../up"', 'collection = "/etc"', 'collection = ".."', "x = 1"]
)
def test_configuration_cannot_name_a_folder_elsewhere(tmp_path: Path, place: str) -> None:
    write_model(tmp_path / "a", done=True, place=place)
    with pytest.raises(PipelineError, match="expected the collection, model and seed of a run"):
        find_models(tmp_path)


def test_missing_and_unfinished_models_and_other_settings_are_named(
    trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="no such file or folder"):
        find_models(tmp_path / "absent")
    with pytest.raises(PipelineError, match="no trained model layout-xla-random/cross_config_sage"):
        take_models(models_to_take(trained, RECIPE, [TILE, XLA], tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    shutil.copytree(trained, tmp_path / "copy")
    next((tmp_path / "copy").rglob("tile_linear-seed0/DONE")).unlink()
    with pytest.raises(PipelineError, match="no trained model tile-xla/tile_linear-seed0; expect"):
        take_models(models_to_take(tmp_path / "copy", RECIPE, [TILE], tmp_path / "run"))
    other = load_recipe("smoke", ['tile.models=["tile_linear"]', "features.prune=hops-2"])
    with pytest.raises(PipelineError, match=r"was trained with features\.prune = "):
        take_models(models_to_take(trained, other, [TILE], tmp_path / "run"))


def test_of_unfinished_trainings_one_is_continued_unless_one_is_finished(tmp_path: Path) -> None:
    write_model(tmp_path / "in" / "first", done=False)
    write_model(tmp_path / "in" / "second", done=False)
    places = TILE, tmp_path / "out"
    assert len(continue_earlier(tmp_path / "in", *places)) == 1
    (tmp_path / "in" / "second" / "DONE").write_text("done\n")
    shutil.rmtree(tmp_path / "out")
    (copied,) = continue_earlier(tmp_path / "in", *places)
    assert copied == tmp_path / "out" / "a-seed0"
    names = {path.name for path in copied.iterdir()}
    assert names == {"DONE", "config.toml", "checkpoint.safetensors"}
