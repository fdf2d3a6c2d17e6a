"""What tuning may change: one table per recipe key, read from configs/tune/*.toml.

    [study]
    collection = "layout:xla:default"
    model = "cross_config_sage"

    ["cross_config_sage.hidden"]
    choices = [32, 64]

    ["cross_config_sage.training.learning_rate"]
    low = 5e-4
    high = 8e-3
    log = true

Ranges whose ends are whole numbers give whole numbers. Light to import.
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
)

from common.errors import UsageError
from common.settings import CONFIGS, FrozenConfig, read_toml
from models.config.recipe import LayoutModelName, Recipe, TileModelName
from pipeline.tuning.study_config import BLEND, LATER_KEYS, StudyConfig

if TYPE_CHECKING:
    from optuna.trial import Trial

Number = StrictInt | StrictFloat
Value = StrictBool | StrictInt | StrictFloat | StrictStr
Parameters = dict[str, Value]
STUDY = "study"


class Choices(FrozenConfig):
    """One of a list, without order: numbers, names, true and false."""

    choices: Annotated[tuple[Value, ...], Field(min_length=1)]

    def ends(self) -> tuple[Value, ...]:
        """Return the values that decide whether all of them fit a recipe."""
        return self.choices

    def holds(self, value: Any) -> bool:
        """Tell whether `value` is one of them; true is not 1."""
        return any(value == choice and type(value) is type(choice) for choice in self.choices)

    def suggest(self, trial: "Trial", key: str) -> Value:
        """Let the trial choose."""
        chosen: Value = trial.suggest_categorical(key, self.choices)
        return chosen


class Range(FrozenConfig):
    """A number from low to high, both included.

    Attributes:
        log: draw its logarithm evenly; for what acts by factors, such as a learning rate.
        step: only low, low + step, low + 2 step, ….
    """

    low: Number
    high: Number
    log: StrictBool = False
    step: Number | None = None

    @field_validator("high")
    @classmethod
    def _not_below_low(cls, high: Number, info: ValidationInfo) -> Number:
        if high < info.data.get("low", high):
            raise ValueError(f"expected at least low, {info.data['low']}")
        return high

    @field_validator("log")
    @classmethod
    def _log_above_zero(cls, log: bool, info: ValidationInfo) -> bool:
        if log and info.data.get("low", 1) <= 0:
            raise ValueError(f"low is {info.data['low']}; a log range starts above 0")
        return log

    @field_validator("step")
    @classmethod
    def _fits(cls, step: Number | None, info: ValidationInfo) -> Number | None:
        if step is None:
            return step
        if step <= 0 or info.data.get("log"):
            raise ValueError("expected one above 0, in a range without log")
        ends = (info.data.get("low"), info.data.get("high"))
        if isinstance(step, float) and all(isinstance(end, int) for end in ends):
            raise ValueError("expected a whole number, as low and high are")
        return step

    @property
    def is_whole(self) -> bool:
        """Tell whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def ends(self) -> tuple[Value, ...]:
        """Return the values that decide whether all of them fit a recipe."""
        return self.low, self.high

    def holds(self, value: Any) -> bool:
        """Tell whether `value` is in the range, and on a step."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self.is_whole and value != int(value)):
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-8

    def suggest(self, trial: "Trial", key: str) -> Value:
        """Let the trial choose."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = int(self.step or 1)
            return trial.suggest_int(key, self.low, self.high, step=step, log=self.log)
        return trial.suggest_float(key, self.low, self.high, step=self.step, log=self.log)


class SearchSpace(FrozenConfig):
    """A study's question, and the values that may answer it, by dotted recipe key."""

    study: StudyConfig
    parameters: Annotated[dict[str, Choices | Range], Field(min_length=1)]

    def decisive(self) -> dict[str, Any]:
        """Return what decides which trials there are and what they score, as TOML values.

        A key of [study] that came later is left out at its default: what was done without it.
        Finalists come after the search, and may be asked for of one that has ended.
        """
        without = {STUDY: {"finalists", "seeds"}}
        table = self.model_dump(mode="json", exclude_none=True, exclude=without)
        for key in LATER_KEYS:
            if table[STUDY][key] == StudyConfig.model_fields[key].default:
                del table[STUDY][key]
        return table


def load_space(name_or_file: str) -> SearchSpace:
    """Read a search space: a path that ends in .toml, or the name of one in configs/tune/.

    Raises:
        UsageError: no such search space, or as `space_from_table`.
        PipelineError: the file is not TOML.
    """
    given = Path(name_or_file)
    path = given if given.suffix == ".toml" else CONFIGS / "tune" / f"{name_or_file}.toml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in (CONFIGS / "tune").glob("*.toml")))
        raise UsageError(
            f"search space '{name_or_file}': no such file; known: {known}; or give a .toml file"
        )
    return space_from_table(read_toml(path), source=f"search space {path.stem}")


def space_from_table(table: Mapping[str, Any], *, source: str) -> SearchSpace:
    """Check a search space, and that all its values make a recipe.

    Args:
        table: `study`, and by dotted recipe key either `choices` or `low` and `high`.
        source: named in errors.

    Raises:
        UsageError: an unknown key here or in the recipe, a value that the recipe refuses, or a
            key that the study's model does not read.
    """
    if not isinstance(table.get(STUDY), Mapping):
        raise UsageError(f"{source}: has no [study] table; expected one with collection and model")
    parameters: dict[str, Choices | Range] = {}
    for key, part in table.items():
        if key != STUDY:
            if not isinstance(part, dict):
                raise UsageError(
                    f"{source}: '{key}' is {part!r}; expected choices, or low and high"
                )
            parameters[key] = _parameter(part, source=f'{source}: ["{key}"]')
    whole = {"study": table.get(STUDY, {}), "parameters": parameters}
    space = SearchSpace.from_table(whole, source=source)
    for key, parameter in parameters.items():
        why_not = _without_effect(key, space.study)
        if why_not:
            raise UsageError(f"{source}: '{key}' has no effect; {why_not}")
        _check_values(key, parameter, source=source)
    return space


def _parameter(table: dict[str, Any], *, source: str) -> Choices | Range:
    """Read one parameter's table; of several faults the one that explains the others is named."""
    kind = Choices if "choices" in table else Range
    ranges = [key for key in Range.model_fields if key in table]
    if kind is Choices and ranges:
        raise UsageError(
            f"{source}: has choices and {ranges[0]}; expected choices, or low and high"
        )
    for key in table:
        if key not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            raise UsageError(f"{source}: unknown key '{key}'; expected one of: {known}")
    for key in ("low", "high", "step"):
        value = table.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{source}: key '{key}' is {value!r}; expected a number")
    missing = [key for key in ("low", "high") if kind is Range and key not in table]
    if missing:
        raise UsageError(f"{source}: has no {missing[0]}; expected choices, or low and high")
    return kind.from_table(table, source=source)


def _without_effect(key: str, study: StudyConfig) -> str | None:
    """Say why no trial of the study depends on `key`, or None if one may."""
    table, _, rest = key.partition(".")
    if study.model != BLEND:
        if table in ("features", study.model):
            return None
        return (
            f"trials train {study.model} alone, which reads {study.model}.… and features.…; "
            f'a study of model = "{BLEND}" blends'
        )
    kind = study.collection.split(":", 1)[0]
    models = get_args(LayoutModelName if kind == "layout" else TileModelName)
    unread = {"choose": "trials blend as the recipe says"}
    if kind == "layout":
        unread["tile_method"] = "trials rank layout configs, by blend.method"
        picks = "trials rank layout configs, of which no few are picked"
        unread |= {"tile_spread": picks, "tile_spread_length": picks}
    if table == "blend":
        weighed = rest.startswith("weights.") and rest.removeprefix("weights.") not in models
        return f"trials blend {kind} models: {', '.join(models)}" if weighed else unread.get(rest)
    if table in ("features", *models):
        return None
    return f"trials blend {kind} models, and read theirs, features.… and blend.…"


def _check_values(key: str, parameter: Choices | Range, *, source: str) -> None:
    """Raise UsageError where a recipe cannot take some of the parameter's values at `key`."""
    defaults = Recipe().model_dump(mode="json")
    for value in parameter.ends():
        try:
            table = with_values(defaults, {key: value})
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None
        recipe = Recipe.from_table(table, source=source)
        taken = value_at(recipe.model_dump(mode="json"), key)
        if isinstance(parameter, Range) and isinstance(taken, int) and not parameter.is_whole:
            raise UsageError(
                f"{source}: '{key}' takes whole numbers; write low and high without decimal point"
            )


def suggest(trial: "Trial", space: SearchSpace) -> Parameters:
    """Let an Optuna trial choose a value for each of the space's keys."""
    return {key: parameter.suggest(trial, key) for key, parameter in space.parameters.items()}


def with_values(table: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a copy of a recipe's table with the value of each dotted key set, type and all.

    Raises:
        UsageError: a key leads through something that is no table.
    """
    result = deepcopy(dict(table))
    for key, value in values.items():
        *parents, last = key.split(".")
        target: Any = result
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise UsageError(f"'{key}': '{parent}' is not a table of the recipe")
        target[last] = value
    return result


def value_at(table: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, None if there is none."""
    value: Any = table
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def own_value(table: Mapping[str, Any], key: str) -> Any:
    """Return what a recipe's table says at a dotted key; 1 where it leaves a blend's weight out."""
    value = value_at(table, key)
    return 1.0 if value is None and key.startswith("blend.weights.") else value
