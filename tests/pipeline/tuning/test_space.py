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


def study_of(model: str, collection: str) -> str:
    return f'[study]\ncollection = "{collection}"\nmodel = "{model}"\n'


LAYOUT, TILE, HIDDEN = "layout:nlp:random", "tile:xla", "cross_config_sage.hidden"
PRUNE = '["features.prune"]\nchoices = ["hops-1"]'
ROUNDS = '["tile_boosting.num_boost_round"]\nchoices = [1]'


@pytest.mark.parametrize(
    ("study", "text", "message"),
    [
        (STUDY, '["cross_config_sage.width"]\nlow = 1\nhigh = 2', "unknown key 'cross_config_sage"),
        (STUDY, f'["{HIDDEN}"]\nchoices = [32, -1]', f"'{HIDDEN}' is -1"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8.0\nhigh = 9.0', "valid integer"),
        (STUDY, f'["{HIDDEN}"]\nlow = 9\nhigh = 8', "9 to 8: expected low <= high"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8', "expected choices, or low and high"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8\nhigh = 9\nscale = 1', "unknown key .*scale'"),
        (STUDY, f'["{HIDDEN}"]\nlow = 0.0\nhigh = 1.0\nlog = true', "for log above 0"),
        (STUDY, "", "parameters"),
        ("", PRUNE, "collection"),
        (study_of("cross_config_sage", "layout:xla"), PRUNE, "no such collection"),
        (study_of("cross_config_sage", TILE), PRUNE, "late_fusion_sage"),
        (f"{STUDY}folds = 1\n", PRUNE, "'study.folds' is 1"),
        (f"{STUDY}pruner = 'asha'\n", PRUNE, "'study.pruner' is 'asha'"),
        (f"{STUDY}trials = 3\n", PRUNE, "unknown key 'study.trials'"),
        (STUDY, ROUNDS, "'tile_boosting.num_boost_round' has no effect; trials of 'cross_config"),
        (study_of("blend", LAYOUT), ROUNDS, "has no effect; trials of 'blend' read"),
        (study_of("blend", LAYOUT), '["blend.choose"]\nchoices = [1]', "'blend.choose' has no"),
        (study_of("blend", TILE), '["threads"]\nchoices = [1]', "'threads' has no effect"),
    ],
)
def test_what_makes_no_recipe_or_changes_no_trial_is_refused_by_name(
    study: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"^(search space mine|collection).*{message}"):
        space_of(text, study=study)


def test_a_model_of_ones_own_is_searched_near_the_recipe_that_names_it() -> None:
    recipe = load_recipe("smoke", ["layout.models=[examples.gat:Gat]"])
    [name] = recipe.own_models
    study = {"collection": "layout:xla:random", "model": name}
    table = {"study": study, f"{name}.hidden": {"choices": [8, 16]}}
    assert space_from_table(table, recipe, source="x").study.model == name
    with pytest.raises(UsageError, match=f"'study.model' is '{name}': layout configs are ranked"):
        space_from_table(table, source="x")
