"""A list of run folders, and the keys in which two runs differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import PipelineError, blame
from common.settings import CONFIGS
from data.tree import KINDS
from models.config.custom import CONFIGS as CUSTOM_CONFIGS
from models.config.custom import is_own, short_name
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from models.run_folder import CONFIG, REPORT, flat, is_done, read_config
from submissions.run_report import read_report


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """List the run folders below a folder by path, without searches of `tune`.

    Args:
        folder: The folder, which may be a run folder itself.

    Returns:
        For each run: `folder`; `state`, "done" or "unfinished"; `recipe`; `model` of the folder of
        a single model, else None; `models` whose training has begun; `changed`, the values by
        dotted key that differ from the recipe of that name in configs/, or from the defaults;
        `limit_graphs`; `seeds`; `revision`, `score` and `values` by collection of the report; and
        `problem`, the reason why the folder cannot be read, or None.

    Raises:
        PipelineError: There is no such folder.
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder}: no such folder; expected one that holds run folders")
    return [row for row in map(_row, _run_folders(folder)) if row]


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return both values of each dotted key in which the configs of two runs differ.

    Keys of models that only one run has, and of kinds that not both rank, are left out.

    Args:
        first: config.toml of a run.
        second: config.toml of another run.

    Returns:
        Two values for each key, None for a value that a config lacks.
    """
    ranked = [_ranked(config) for config in (first, second)]
    kinds = ranked[0].keys() & ranked[1].keys()
    models = [{short_name(model) for kind in kinds for model in own[kind]} for own in ranked]
    every = {*MODELS, *(short_name(m) for own in ranked for kind in own.values() for m in kind)}
    idle = [f"recipe.{kind}." for kind in set(KINDS) - kinds]
    for model in every - (models[0] & models[1]):
        idle += [f"recipe.{model}.", f"recipe.blend.weights.{model}"]
    sides = [
        {
            key: value
            for key, value in flat(config)
            if value != {} and not key.startswith(tuple(idle))
        }
        for config in (first, second)
    ]
    pairs = {key: [side.get(key) for side in sides] for key in sorted({**sides[0], **sides[1]})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _ranked(config: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the models of each kind of configs that a run has ranked."""
    recipe, collections = config.get("recipe", {}), config.get("collections", KINDS)
    kinds = {name.partition(":")[0] for name in collections}
    return {kind: recipe.get(kind, {}).get("models", ()) for kind in kinds}


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / CONFIG).is_file():
        yield folder
        return
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _run_folders(path)


def _row(folder: Path) -> dict[str, Any] | None:
    row: dict[str, Any] = {"folder": folder, "state": "done" if is_done(folder) else "unfinished"}
    row |= dict.fromkeys(("recipe", "model", "revision", "score", "values", "problem"))
    row |= {"models": (), "changed": {}, "seeds": (), "limit_graphs": None}
    try:
        with blame(folder, f"the {CONFIG} of a run"):
            facts = _facts(folder)
            json.dumps(facts, allow_nan=False)  # as it is printed
    except PipelineError as error:
        return row | {"problem": " ".join(str(error).split())}
    return None if facts is None else row | facts


def _facts(folder: Path) -> dict[str, Any] | None:
    """Return the fields of a row that the files of a run folder fill; None for a search."""
    config = read_config(folder)
    report = read_report(folder) if (folder / REPORT).exists() else None
    if "space" in config:
        return None
    row: dict[str, Any] = {}
    recipe, model = config.get("recipe", {}), config.get("model")
    if report is not None:
        parts = report.collections.items()
        values = {name: part.value for name, part in parts if part.value is not None}
        row |= {"values": values, "revision": report.revision, "score": report.score}
    members = (path.parent.name for path in folder.glob(f"models/*/*/{CONFIG}"))
    begun = {name.rpartition("-seed")[0] for name in members}
    own = (short_name(name) for kind in KINDS for name in recipe.get(kind, {}).get("models", ()))
    return row | {
        "recipe": recipe.get("name"),
        "model": model,
        "models": (model,) if model else tuple(name for name in own if name in begun),
        "changed": _changed(recipe),
        "limit_graphs": config.get("limit_graphs"),
        "seeds": (config["seed"],) if "seed" in config else tuple(recipe.get("seeds", ())),
    }


def _changed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    path = CONFIGS / f"{recipe.get('name')}.toml"
    named = load_recipe(str(path)) if path.is_file() else Recipe()
    shipped, usual = (named.model_dump(mode="json") for _ in range(2))
    for kind in KINDS:
        usual[kind]["models"] = models = recipe.get(kind, {}).get("models", ())
        for model in filter(is_own, models):
            defaults = CUSTOM_CONFIGS[kind]().model_dump(mode="json")  # its own are in its code
            usual = {short_name(model): defaults} | usual
    pairs = differing_keys({"recipe": usual}, {"recipe": recipe})
    for kind in KINDS if path.is_file() else ():
        before, now = (list(table.get(kind, {}).get("models", ())) for table in (shipped, recipe))
        if before != now:
            pairs[f"{kind}.models"] = [before, now]
    own = {key.removeprefix("recipe."): value for key, (_, value) in pairs.items()}
    shown = ("name", "seeds")  # in fields of their own
    return {key: value for key, value in own.items() if value is not None and key not in shown}
