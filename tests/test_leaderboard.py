"""The full recipe: it can be read, and each of its models goes through a run in the small."""

import json
from pathlib import Path

import pytest

from data.tree import COLLECTIONS
from models.config.recipe import load_recipe
from pipeline.run.run import Inputs, run

GNNS = ("cross_config_sage", "late_fusion_sage", "early_fusion_sage")
TINY = [
    *(f"{model}.training.steps=3" for model in GNNS),
    *(f"{model}.training.warmup_steps=1" for model in GNNS),
    *(f"{model}.training.checkpoint_every=2" for model in GNNS),
    *(f"{model}.hidden=16" for model in GNNS),
    *(f"{model}.configs_per_step=8" for model in GNNS[:1]),
    *(f"{model}.kernels_per_step=2" for model in GNNS[1:]),
    *(f"{model}.num_boost_round=4" for model in ("layout_boosting", "tile_boosting")),
    *(f"{model}.early_stop=0" for model in ("layout_boosting", "tile_boosting")),
    *("seeds=[0]", "threads=1", "accelerator=cpu"),
]


def test_every_table_of_the_recipe_is_of_a_model_that_it_has() -> None:
    recipe = load_recipe("leaderboard")
    models = {*recipe.layout.models, *recipe.tile.models}
    default = type(recipe)()
    changed = {
        name
        for name in type(recipe).model_fields
        if hasattr(getattr(recipe, name), "training")
        and getattr(recipe, name) != getattr(default, name)
    }
    assert changed <= models
    assert set(recipe.blend.weights) <= models


@pytest.mark.slow
def test_each_model_runs_in_the_small(tiny_tree: Path, tmp_path: Path) -> None:
    recipe = load_recipe("leaderboard", TINY)
    run(Inputs(tiny_tree, store=tmp_path / "store"), tmp_path / "run", recipe, resume=False)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (tmp_path / "run" / "submission.csv").exists()
    assert set(report["collections"]) == {collection.name for collection in COLLECTIONS}
    trained = {path.parent.name for path in (tmp_path / "run" / "models").rglob("DONE")}
    assert trained == {f"{m}-seed0" for m in (*recipe.layout.models, *recipe.tile.models)}
