"""Runs begun before a recipe key was there go on; all other differences are still named."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import UsageError
from models.config.recipe import load_recipe
from models.config.recipe_migration import with_new_keys
from models.run_folder import begin, read_config


def config_of(*overrides: str) -> dict[str, Any]:
    """What `train` writes, with a copy of the recipe's table."""
    recipe = load_recipe("smoke", list(overrides))
    return {"model": "baseline_gcn", "seed": 0, "recipe": recipe.model_dump(mode="json")}


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    """Remove a dotted key of the recipe in place."""
    *tables, last = key.split(".")
    table = config["recipe"]
    for name in tables:
        table = table[name]
    del table[last]
    return config


@pytest.mark.parametrize(
    "key",
    [
        "baseline_gcn.training.processes",
        "baseline_gcn.loss",
        "features.prune",
        "tile.models",
        "accelerator",
    ],
)
def test_a_key_that_came_later_counts_as_its_default(key: str, tmp_path: Path) -> None:
    today, older = config_of(), without(config_of(), key)
    assert older != today
    assert with_new_keys(older, today) == today
    begin(tmp_path / "run", older, resume=False)
    begin(tmp_path / "run", today, resume=True)
    assert read_config(tmp_path / "run") == older


def test_a_later_key_with_another_value_is_named(tmp_path: Path) -> None:
    key = "baseline_gcn.training.early_stop"
    begin(tmp_path / "run", without(config_of(), key), resume=False)
    with pytest.raises(UsageError, match=f"begun with recipe.{key} = 0, now 3;"):
        begin(tmp_path / "run", config_of(f"{key}=3"), resume=True)


def test_a_key_that_is_no_more_is_named(tmp_path: Path) -> None:
    older = config_of()
    older["recipe"]["baseline_gcn"]["momentum"] = 0.9
    begin(tmp_path / "run", older, resume=False)
    with pytest.raises(UsageError, match=r"recipe.baseline_gcn.momentum = 0.9, now None"):
        begin(tmp_path / "run", config_of(), resume=True)


def test_nothing_but_the_recipe_is_filled_in() -> None:
    today = {"seed": 0, "threads": 2, "recipe": {"name": "x", "blend": {"weights": {"a": 1.0}}}}
    older = {"recipe": {"name": "x", "blend": {"weights": {}}}}
    assert with_new_keys(older, today) == older
    assert with_new_keys({"seed": 0}, today) == {"seed": 0}
