"""Search spaces: a study and the parameters that its trials vary.

A search space is a file, for example configs/tune/cpu.toml. If both ends of a range are whole
numbers, its values are whole numbers.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from common.errors import UsageError
from common.settings import CONFIGS, FrozenConfig, read_toml, recipe_path, set_value
from data.tree import collection_named
from models.config.recipe import Recipe
from models.run_folder import flat

if TYPE_CHECKING:
    from optuna.trial import Trial

STUDY = "study"

Number = StrictInt | StrictFloat
Value = StrictBool | StrictInt | StrictFloat | StrictStr
Parameters = dict[str, Value]


class StudyConfig(FrozenConfig):
    """The metric of trials: one model, cross-validated on a train split.

    Attributes:
        folds: Number of folds. All graphs of a family are in one fold.
        seed: Seed of the folds and of the search. The training's is the recipe's first.
        pruner: "wilcoxon" ends a trial after a fold if its graphs are worse than the best
            trial's. "none" ends no trial early.
    """

    collection: str
    model: str
    folds: Annotated[int, Field(ge=2)] = 2
    seed: Annotated[int, Field(ge=0)] = 0
    pruner: Literal["none", "wilcoxon"] = "none"

    @property
    def kind(self) -> str:
        return collection_named(self.collection).kind

    @property
    def name(self) -> str:
        return f"{self.collection}:{self.model}"


class Parameter(FrozenConfig):
    """One of `choices`, or a number from `low` to `high`, both included."""

    choices: tuple[Value, ...] = ()
    low: Number = 0
    high: Number = 0
    log: StrictBool = False

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        keys, low, high = self.model_fields_set, self.low, self.high
        if not (keys == {"choices"} and self.choices) and keys - {"log"} != {"low", "high"}:
            raise ValueError("expected choices, or low and high")
        if high < low or (self.log and low <= 0):
            raise ValueError(f"{low} to {high}: expected low <= high, and for log above 0")
        return self

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def examples(self) -> tuple[Value, ...]:
        """Return values for a check: a recipe that accepts them accepts all values."""
        between = () if self._is_whole else (self.low + (self.high - self.low) / 3,)
        return self.choices or (self.low, self.high, *between)

    def is_allowed(self, value: Any) -> bool:
        """Return whether a value can be drawn. True and 1 are different values."""
        if self.choices:
            return any(value == c and type(value) is type(c) for c in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self._is_whole and value % 1)

    def suggest(self, trial: "Trial", key: str) -> Any:
        """Return the value that an Optuna trial chooses."""
        if self.choices:
            return trial.suggest_categorical(key, self.choices)
        if self._is_whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)


class SearchSpace(FrozenConfig):
    """A study and its parameters, by dotted recipe key."""

    study: StudyConfig
    parameters: Annotated[dict[str, Parameter], Field(min_length=1)]

    def to_table(self) -> dict[str, Any]:
        """Return the search space as TOML values."""
        parameters = {
            key: parameter.model_dump(mode="json", exclude_unset=True)
            for key, parameter in self.parameters.items()
        }
        return {STUDY: self.study.model_dump(mode="json"), **parameters}


def load_space(name_or_file: str, recipe: Recipe | None = None) -> SearchSpace:
    """Read a search space: a .toml file, or a name in configs/tune/."""
    path = recipe_path(name_or_file, folder=CONFIGS / "tune", what="search space")
    return space_from_table(read_toml(path, UsageError), recipe, source=str(path))


def space_from_table(
    table: Mapping[str, Any], recipe: Recipe | None = None, *, source: str
) -> SearchSpace:
    """Return a search space after a check that all its values fit a recipe."""
    for key, _ in flat({k: v for k, v in table.items() if k != STUDY}):
        name = key.rpartition(".")[0]
        if "." in name and not {key, name} & table.keys():
            raise UsageError(f'{source}: a key in quotes is expected: ["{name}"], not [{name}]')
    parts = {STUDY: table.get(STUDY, {}), "parameters": {k: table[k] for k in table if k != STUDY}}
    space = SearchSpace.from_table(parts, source=source)
    study, recipe = space.study, recipe or Recipe()
    if study.model not in recipe.models_of(study.kind):
        raise UsageError(
            f"{source}: key 'study.model' is '{study.model}': recipe {recipe.name} ranks "
            f"{study.kind} configs by {', '.join(recipe.models_of(study.kind))}; others, your own "
            f"too, are named by --set '{study.kind}.models=[…]'"
        )
    settings = recipe.of(collection_named(study.collection))
    recipe_table = settings.model_dump(mode="json")
    for key, parameter in space.parameters.items():
        if key.split(".")[0] not in ("features", study.model) or settings.is_idle(key):
            hint = f"trials of '{study.model}' read features.…, {study.model}.…"
            raise UsageError(f"{source}: '{key}' has no effect; {hint}")
        for value in parameter.examples():
            table = with_values(recipe_table, {key: value})
            Recipe.from_table(table, source=source, trust=recipe.trust)
    return space


def with_values(table: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a copy of a recipe's table with some values changed."""
    result = deepcopy(dict(table))
    for key, value in values.items():
        set_value(result, key, value, source=f"search space: key '{key}'")
    return result
