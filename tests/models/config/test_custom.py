"""Imports of custom code: a run folder from somebody else includes a module."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from common.errors import UsageError
from common.files import checksum_of
from ensembles import load_ranker
from models.config.recipe import Recipe
from tests.support.command_line import call

EVIL, COLLECTION = "runs.x.evil:Model", "layout:xla:random"
CODE = 'from pathlib import Path\nPath("{}").touch()\n'


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder with the code of a trained custom model, and valid checksums."""
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = CODE.format(tmp_path / "executed")
    (folder / "evil.py").write_text(code)
    table = {"name": "cpu", "layout": {"models": [EVIL]}, "evil": {"hidden": 8}}
    config = {"model": "evil", "collection": COLLECTION, "seed": 0, "recipe": table}
    config["source"] = {"evil.py": checksum_of(code.encode())}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    mark = f"done\n{checksum_of((folder / 'config.toml').read_bytes())} config.toml\n"
    (folder / "DONE").write_text(mark)
    yield folder
    assert not (tmp_path / "executed").exists()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("runs", "linked")]:
        del sys.modules[name]


def test_a_folder_is_listed_without_its_code(sent: Path) -> None:
    assert "runs/x " in call("runs", "runs")
    recipe = Recipe.from_table({"layout": {"models": [EVIL]}, "evil": {"a": 1}}, source="here")
    assert recipe.trust == () and recipe.model_dump()["evil"]["a"] == 1
    whole = sent.parent / "whole"
    whole.mkdir()
    (whole / "config.toml").write_text((sent / "config.toml").read_text().replace("model =", "a ="))
    (whole / "DONE").touch()
    words = ("--runs", whole, "--collection", COLLECTION, "--out", "b.parquet")
    assert "has no scores of the test split" in call("blend", *words, expect=1)


@pytest.mark.parametrize("command", ["rank", "predict", "run", "train", "plan"])
def test_consent_is_asked_for_by_name(command: str, sent: Path, tiny_tree: Path) -> None:
    files = tiny_tree / "npz" / "layout" / "xla" / "random" / "valid"
    words = {
        "rank": ("--run", sent, next(files.glob("*.npz")), "--collection", COLLECTION),
        "predict": ("--run", sent, "--data", tiny_tree),
        "run": ("--recipe", sent / "config.toml", "--data", tiny_tree, "--out", "o"),
        "train": ("--recipe", sent / "config.toml", "--collection", COLLECTION, "--out", "o"),
        "plan": ("--recipe", sent / "config.toml"),
    }[command]
    line = call(command, *words, expect=2).splitlines()[-1]
    assert "a run folder names it and no recipe of yours; if you know the code, pass" in line
    assert f" --trust {EVIL} (" in line


def test_a_text_is_one_model_and_a_prefix_is_none(sent: Path) -> None:
    for trust in ("runs.x.evil:Model2", ["runs.x.evil"], f"a.{EVIL}"):
        with pytest.raises(UsageError, match="pass --trust"):
            load_ranker(sent, trust=trust)


@pytest.mark.parametrize("name", ["_evil", "custom_models", "tile", "model_dump"])
def test_a_name_that_a_recipe_has_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is taken"):
        Recipe.from_table({"layout": {"models": [f"runs.{name}:Model"]}}, source="here")
