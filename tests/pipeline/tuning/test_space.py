"""Search spaces: read from TOML, checked against the recipe, sampled by Optuna."""

import tomllib
from typing import Any

import optuna
import pytest

from common.errors import UsageError
from common.settings import CONFIGS
from models.config.recipe import Recipe, load_recipe
from pipeline.tuning.space import SearchSpace, space_from_table, value_at, with_values

STUDY = """
[study]
collection = "layout:xla:default"
model = "cross_config_sage"
"""


def space_of(text: str, *, study: str = STUDY, recipe: Recipe | None = None) -> Any:
    return space_from_table(tomllib.loads(study + text), recipe, source="search space mine")


def draw(study: optuna.Study, space: SearchSpace) -> dict[str, Any]:
    trial = study.ask()
    return {key: parameter.suggest(trial, key) for key, parameter in space.parameters.items()}


SHIPPED = [path.read_text() for path in sorted((CONFIGS / "tune").glob("*.toml"))]


@pytest.mark.parametrize("text", SHIPPED)
def test_each_shipped_space_is_read_and_makes_recipes(text: str) -> None:
    cpu = load_recipe("cpu")
    space = space_of(text, study="", recipe=cpu)
    assert (space.study.finalists, space.study.seeds) == (3, 3)
    own = cpu.model_dump(mode="json")
    outside = [k for k, p in space.parameters.items() if not p.holds(value_at(own, k))]
    assert not outside, "the recipe itself is a trial of the space"
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    defaults = Recipe().model_dump(mode="json")
    drawn = [draw(study, space) for _ in range(30)]
    for values in drawn:
        recipe = Recipe.from_table(with_values(defaults, values), source="drawn")
        table = recipe.model_dump(mode="json")
        assert {key: value_at(table, key) for key in values} == values
    for key in space.parameters:
        assert len({values[key] for values in drawn}) > 1, key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["cross_config_sage.width"]\nlow = 1\nhigh = 2', "unknown key 'cross_config_sage.width'"),
        ('["cross_config_sage.hidden"]\nchoices = [32, -1]', "'cross_config_sage.hidden' is -1"),
        ('["cross_config_sage.hidden"]\nlow = 8.0\nhigh = 9.0', "valid integer"),
        ('["cross_config_sage.hidden"]\nlow = 9\nhigh = 8', "9 to 8: expected low <= high"),
        ('["cross_config_sage.hidden"]\nlow = 8', "expected choices, or low and high"),
        ('["cross_config_sage.hidden"]\nlow = 8\nhigh = 9\nscale = 1', "unknown key .*scale'"),
        (
            '["cross_config_sage.training.weight_decay"]\nlow = 0.0\nhigh = 1.0\nlog = true',
            "for log above 0",
        ),
        ("", "parameters"),
    ],
)
def test_what_makes_no_recipe_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"search space mine.*{message}"):
        space_of(text)


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("", "collection"),
        ('[study]\ncollection = "layout:xla"\nmodel = "cross_config_sage"', "no such collection"),
        ('[study]\ncollection = "tile:xla"\nmodel = "cross_config_sage"', "late_fusion_sage"),
        (f"{STUDY}folds = 1", "'study.folds' is 1"),
        (f"{STUDY}pruner = 'asha'", "'study.pruner' is 'asha'"),
        (f"{STUDY}trials = 3", "unknown key 'study.trials'"),
    ],
)
def test_a_wrong_study_is_refused_by_name(study: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        space_of('\n["features.prune"]\nchoices = ["hops-1"]', study=study)


@pytest.mark.parametrize(
    ("model", "collection", "text"),
    [
        ("cross_config_sage", "layout:xla:default", "tile_boosting.num_boost_round"),
        ("blend", "layout:nlp:random", "tile_boosting.num_boost_round"),
        ("blend", "layout:nlp:random", "blend.choose"),
        ("blend", "tile:xla", "threads"),
    ],
)
def test_what_trials_do_not_depend_on_is_refused(model: str, collection: str, text: str) -> None:
    study = f'[study]\ncollection = "{collection}"\nmodel = "{model}"\n'
    message = f"mine: '{text}' has no effect; trials of '{model}' read"
    with pytest.raises(UsageError, match=message):
        space_of(f'["{text}"]\nchoices = [1]', study=study)


def test_a_model_of_ones_own_is_searched_near_the_recipe_that_names_it() -> None:
    recipe = load_recipe("smoke", ["layout.models=[examples.gat:Gat]"])
    [name] = recipe.own_models
    study = {"collection": "layout:xla:random", "model": name}
    table = {"study": study, f"{name}.hidden": {"choices": [8, 16]}}
    assert space_from_table(table, recipe, source="x").study.model == name
    with pytest.raises(UsageError, match=f"'study.model' is '{name}': layout configs are ranked"):
        space_from_table(table, source="x")
