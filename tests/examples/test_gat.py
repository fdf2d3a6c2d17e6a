"""A model of one's own, by its place: trained, loaded, checked and refused as the built-in ones."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from data.read import read_graph
from data.tree import collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.train import load_model, train_model
from models.training.jobs import TrainJob

GAT = 'layout.models=["layout_linear", "examples.gat:Gat"]'
COLLECTION = collection_named("layout:xla:random")


def test_it_is_trained_and_ranks(tiny_tree: Path, tmp_path: Path) -> None:
    recipe = load_recipe("smoke", [GAT, "gat.hidden=8", "gat.training.steps=2"])
    assert recipe.models_of("layout") == ("layout_linear", "gat")
    files = find_graphs(tiny_tree, collections=(COLLECTION,), splits=("train",))
    train_model(TrainJob("gat", recipe, files, 0, tmp_path / "gat"), COLLECTION, resume=False)
    scores = load_model(tmp_path / "gat").score(read_graph(files[0]))
    assert np.isfinite(scores).all() and scores.std() > 0


def test_its_recipe_can_be_written_and_pickled() -> None:
    recipe = load_recipe("smoke", [GAT, "gat.hidden=8", "blend.weights.gat=0.5"])
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    table = recipe.model_dump(mode="json")
    assert table["gat"]["hidden"] == 8
    assert Recipe.from_table(table, source="again") == recipe


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([GAT, "gat.width=8"], "unknown key 'gat.width'; expected one of: configs_per_step, "),
        ([GAT, "gat.hidden=0"], "key 'gat.hidden' is 0"),
        (["gat.hidden=8"], "unknown key 'gat'"),
        ([GAT, "blend.weights.nosuch=1"], "blend.weights.nosuch: no such model; expected .*gat"),
        (['layout.models=["examples.nosuch:Gat"]'], "'examples.nosuch:Gat': cannot be imported"),
        (['layout.models=["examples.gat:Nosuch"]'], "'examples.gat:Nosuch': cannot be imported"),
        (['layout.models=["examples.gat:GatLayer"]'], "subclass of models.layout.network"),
        (['tile.models=["examples.gat:Gat"]'], "ranks no tile configs"),
        (['layout.models=["examples.gat:Gat", "examples.gat:Gat"]'], "each entry once"),
        (['layout.models=["models.config.blend:Gat"]'], "cannot be imported|is taken"),
    ],
)
def test_what_does_not_fit_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_recipe("smoke", overrides)
