"""A study that takes moments: a tiny layout model and two of its keys."""

from pathlib import Path
from typing import Any

from models.config.recipe import Recipe, load_recipe
from pipeline.tuning.space import SearchSpace, space_from_table, with_values
from pipeline.tuning.tune import TuneResult, tune

LEARNING_RATE = "cross_config_sage.training.learning_rate"


def small_recipe(**values: Any) -> Recipe:
    """The smoke recipe with a yet smaller layout model that learns too slowly to win."""
    table = load_recipe("smoke").model_dump(mode="json")
    small = {"cross_config_sage.hidden": 8, "cross_config_sage.opcode_width": 4, "threads": 1}
    values = {**small, LEARNING_RATE: 1e-4, **values}
    return Recipe.from_table(with_values(table, values), source="test")


def space_over(
    parameters: dict[str, Any],
    *,
    collection: str = "layout:xla:random",
    model: str = "cross_config_sage",
    recipe: Recipe | None = None,
    **study_keys: Any,
) -> SearchSpace:
    study = {"collection": collection, "model": model, **study_keys}
    return space_from_table({"study": study, **parameters}, recipe, source="search space test")


PARAMETERS = {
    "cross_config_sage.configs_per_step": {"choices": [8, 16]},
    LEARNING_RATE: {"low": 1e-4, "high": 1e-1, "log": True},
}
SPACE = space_over(PARAMETERS)
DIVERGES = space_over({LEARNING_RATE: {"choices": [1e30]}})


def search(
    data: Path, folder: Path, *, trials: int, space: SearchSpace = SPACE, **options: Any
) -> TuneResult:
    recipe = options.pop("recipe", small_recipe())
    storage = options.pop("storage", folder / "journal.log")
    return tune(recipe, space, data, storage=storage, trials=trials, out=folder / "out", **options)


def outcome(result: TuneResult) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, t.value, t.params) for t in result.trials]
