"""What a search asks, and what it may change: read from files such as configs/tune/cpu.toml.

Ranges whose ends are whole numbers give whole numbers.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from common.errors import UsageError
from common.settings import CONFIGS, FrozenConfig, read_toml, recipe_path, set_value
from data.tree import collection_named
from models.config.recipe import LayoutModelName, Recipe, TileModelName

if TYPE_CHECKING:
    from optuna.trial import Trial

BLEND, STUDY = "blend", "study"

Number = StrictInt | StrictFloat
Value = StrictBool | StrictInt | StrictFloat | StrictStr
Parameters = dict[str, Value]


class StudyConfig(FrozenConfig):
    """What a trial is judged by: a model or a blend, cross-validated on a train split.

    Attributes:
        model: its name in the recipe; or "blend": all models by which the recipe ranks the
            collection's kind, a seed each, blended as the recipe says.
        folds: of whole architectures; each is held out once.
        seed: of the folds and of the search; the training's is the recipe's first.
        pruner: gives a trial up after a fold. "hyperband" compares the mean of its folds so far
            with other trials'; "wilcoxon" its graphs so far with the best trial's, one by one.
        finalists: so many of the best trials, and the baseline, are trained again with `seeds`
            other seeds; 0 = the best trial wins.
    """

    collection: str
    model: str
    folds: Annotated[int, Field(ge=2)] = 2
    seed: Annotated[int, Field(ge=0)] = 0
    pruner: Literal["none", "hyperband", "wilcoxon"] = "none"
    finalists: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 3

    @property
    def kind(self) -> str:
        return collection_named(self.collection).kind

    @property
    def name(self) -> str:
        return f"{self.collection}:{self.model}"

    def models(self, recipe: Recipe) -> tuple[str, ...]:
        return recipe.models_of(self.kind) if self.model == BLEND else (self.model,)


class Parameter(FrozenConfig):
    """One of `choices`, or a number from `low` to `high`, both included.

    Attributes:
        log: draw its logarithm evenly; for what acts by factors, such as a learning rate.
    """

    choices: tuple[Value, ...] = ()
    low: Number = 0
    high: Number = 0
    log: StrictBool = False

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        given, low, high = self.model_fields_set, self.low, self.high
        if not (given == {"choices"} and self.choices) and given - {"log"} != {"low", "high"}:
            raise ValueError("expected choices, or low and high")
        if high < low or (self.log and low <= 0):
            raise ValueError(f"{low} to {high}: expected low <= high, and for log above 0")
        return self

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def examples(self) -> tuple[Value, ...]:
        """Return values that a recipe takes if it takes all."""
        between = () if self._is_whole else (self.low + (self.high - self.low) / 3,)
        return self.choices or (self.low, self.high, *between)

    def holds(self, value: Any) -> bool:
        """Tell whether `value` can be drawn; true is not 1."""
        if self.choices:
            return any(value == own and type(value) is type(own) for own in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self._is_whole and value % 1)

    def suggest(self, trial: "Trial", key: str) -> Value:
        """Let an Optuna trial choose."""
        if self.choices:
            chosen: Value = trial.suggest_categorical(key, self.choices)
            return chosen
        if self._is_whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)


class SearchSpace(FrozenConfig):
    """A study's question, and the values that may answer it, by dotted recipe key."""

    study: StudyConfig
    parameters: Annotated[dict[str, Parameter], Field(min_length=1)]

    def decisive(self) -> dict[str, Any]:
        """Return what decides the trials, as TOML values; finalists may still be asked for."""
        study = self.study.model_dump(mode="json", exclude={"finalists", "seeds"})
        own = {k: p.model_dump(mode="json", exclude_unset=True) for k, p in self.parameters.items()}
        return {STUDY: study, **own}


def load_space(name_or_file: str, recipe: Recipe | None = None) -> SearchSpace:
    """Read a search space: a path that ends in .toml, or the name of one in configs/tune/.

    Raises:
        PipelineError: no such search space, or no TOML, or as `space_from_table`.
    """
    path = recipe_path(name_or_file, folder=CONFIGS / "tune", what="search space")
    return space_from_table(read_toml(path), recipe, source=f"search space {path.stem}")


def space_from_table(
    table: Mapping[str, Any], recipe: Recipe | None = None, *, source: str
) -> SearchSpace:
    """Check a search space, and that all its values make a recipe.

    Raises:
        UsageError: an unknown key here or in the recipe, a value that the recipe refuses, or a
            key that the study's model does not read.
    """
    whole = {STUDY: table.get(STUDY, {}), "parameters": {k: table[k] for k in table if k != STUDY}}
    space = SearchSpace.from_table(whole, source=source)
    study, recipe = space.study, recipe or Recipe()
    built_in = get_args(LayoutModelName if study.kind == "layout" else TileModelName)
    known = tuple(dict.fromkeys((*built_in, *recipe.models_of(study.kind), BLEND)))
    if study.model not in known:
        raise UsageError(
            f"{source}: key 'study.model' is '{study.model}': {study.kind} configs are ranked by "
            f"{' and '.join(known)}"
        )
    read = ("features", *study.models(recipe), *([BLEND] if study.model == BLEND else []))
    own = recipe.model_dump(mode="json")
    for key, parameter in space.parameters.items():
        if key.split(".")[0] not in read or key == "blend.choose":
            raise UsageError(
                f"{source}: '{key}' has no effect; trials of '{study.model}' read "
                + ", ".join(f"{table}.…" for table in read)
            )
        for value in parameter.examples():
            Recipe.from_table(with_values(own, {key: value}), source=source)
    return space


def with_values(table: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a copy of a recipe's table with the value of each dotted key set."""
    result = deepcopy(dict(table))
    for key, value in values.items():
        set_value(result, key, value, source=f"search space: key '{key}'")
    return result


def value_at(table: Mapping[str, Any], key: str) -> Any:
    """Return what a recipe's table says at a dotted key; 1 for a blend's weight it leaves out."""
    value: Any = table
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return 1.0 if value is None and key.startswith("blend.weights.") else value
