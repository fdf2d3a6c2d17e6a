"""A run folder of another revision of the code: gone on with, and told; or refused by the key."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from models.run_folder import read_config
from pipeline.run.revisions import REVISIONS
from tests.command_line import call
from tests.drills.outcome import contents
from tests.drills.processes import RECIPE, Scene

OLDER, NEWER = "0123456789ab", "ba9876543210"


@pytest.fixture
def older(calm: Scene, tmp_path: Path) -> Scene:
    """A finished run of which the blend of tiles is still to be made."""
    scene = Scene(calm.data, tmp_path / "run", calm.store, tmp_path)
    shutil.copytree(calm.out, scene.out)
    (scene.out / "DONE").unlink()
    shutil.rmtree(scene.out / "scores" / "tile-xla" / "blend")
    return scene


def resume(scene: Scene, monkeypatch: pytest.MonkeyPatch, *, expect: int = 0) -> str:
    monkeypatch.setenv("PIPELINE_STORE", str(scene.store))
    return call(*scene.run(), expect=expect)


@pytest.mark.slow
def test_a_run_that_another_revision_goes_on_with_says_so(
    older: Scene, calm: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (older.out / REVISIONS).write_text(f"{OLDER}\n")
    monkeypatch.setattr("pipeline.run.run.revision", lambda: NEWER)
    monkeypatch.setattr("pipeline.run.report.revision", lambda: NEWER)
    said = resume(older, monkeypatch)
    assert f"begun under revision {OLDER}, goes on under {NEWER}; what is done is kept" in said
    report = json.loads((older.out / "report.json").read_text())
    assert report["revision"] == NEWER
    assert report["revisions"] == [OLDER, NEWER]
    page = (older.out / "report.html").read_text()
    assert f"<dt>parts of it by revision</dt><dd>{OLDER}</dd>" in page
    same = ("submission.csv", "submission-valid.csv", "scores/tile-xla/blend/test.parquet")
    found, want = contents(older.out), contents(calm.out)
    assert all(found[name] == want[name] for name in same)


def edit(config: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the recipe in a config.toml."""
    table = read_config(config.parent)
    change(table["recipe"])
    config.write_text(tomli_w.dumps(table))


@pytest.mark.slow
def test_a_run_from_before_a_recipe_key_goes_on(
    older: Scene, calm: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(older.out / "config.toml", lambda recipe: recipe.pop("accelerator"))
    resume(older, monkeypatch)
    for name in ("submission.csv", "submission-valid.csv"):
        assert (older.out / name).read_bytes() == (calm.out / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda recipe: recipe.update(shape="round"), "recipe.shape = 'round', now None"),
        (lambda recipe: recipe["blend"].update(choose=False), "recipe.blend.choose = False, now"),
    ],
    ids=["a key that is no more", "another value"],
)
def test_a_run_of_a_later_recipe_is_refused(
    change: Callable[[dict[str, object]], object],
    named: str,
    older: Scene,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit(older.out / "config.toml", change)
    before = contents(older.out)
    said = resume(older, monkeypatch, expect=2)
    assert f"was begun with {named}" in said
    assert RECIPE.stem == "drill" and contents(older.out) == before
