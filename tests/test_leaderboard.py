"""The full recipe: it can be read, and each of its models goes through a run in the small."""

import json
from pathlib import Path

import pytest

from models.config.recipe import load_recipe
from pipeline.run.run import Inputs, run

GNNS = ("cross_config_sage", "global_attention_sage", "late_fusion_sage", "early_fusion_sage")
TINY = [
    *(f"{model}.training.steps=3" for model in GNNS),
    *(f"{model}.training.warmup_steps=1" for model in GNNS),
    *(f"{model}.training.checkpoint_every=2" for model in GNNS),
    *(f"{model}.hidden=16" for model in GNNS),
    *(f"{model}.configs_per_step=8" for model in GNNS[:2]),
    *(f"{model}.kernels_per_step=2" for model in GNNS[2:]),
    *(f"{model}.num_boost_round=4" for model in ("layout_boosting", "tile_boosting")),
    *(f"{model}.early_stop=0" for model in ("layout_boosting", "tile_boosting")),
    *("seeds=[0]", "threads=1", "accelerator=cpu"),
]


def test_it_is_as_strong_as_the_field_says_it_must_be() -> None:
    recipe = load_recipe("leaderboard")
    assert len(recipe.seeds) >= 5
    assert recipe.features.prune == "hops-1"
    assert recipe.blend.choose
    assert recipe.threads
    for kind in ("layout", "tile"):
        assert len(recipe.models_of(kind)) >= 3
    for model in ("cross_config_sage", "global_attention_sage", "late_fusion_sage"):
        training = getattr(recipe, model).training
        assert training.steps >= 5_000
        assert 0 < training.swa_start < 1
        assert training.precision == "float32"


def test_every_table_of_the_recipe_is_of_a_model_that_it_has() -> None:
    recipe = load_recipe("leaderboard")
    models = {*recipe.layout.models, *recipe.tile.models}
    default = load_recipe("leaderboard", []).__class__()
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
    assert set(report["collections"]) == {
        "tile:xla",
        *(
            f"layout:{source}:{search}"
            for source in ("xla", "nlp")
            for search in ("default", "random")
        ),
    }
    trained = {path.parent.name for path in (tmp_path / "run" / "models").rglob("DONE")}
    assert trained == {f"{m}-seed0" for m in (*recipe.layout.models, *recipe.tile.models)}
