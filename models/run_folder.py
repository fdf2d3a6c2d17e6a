"""A result is a folder: configuration, metrics, weights, and a DONE mark written last."""

from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from common.errors import PipelineError, UsageError
from common.files import checksum_of, create_text, write_text
from common.settings import RUN_CONFIG, read_toml
from models.config.recipe import Recipe

CONFIG = RUN_CONFIG
DONE = "DONE"
METRICS = "metrics.jsonl"
REPORT = "report.json"
REPORT_PICTURE = "report.png"


def is_done(folder: Path) -> bool:
    return (folder / DONE).exists()


def mark_done(folder: Path, files: Iterable[Path] = ()) -> None:
    """Say that everything in `folder` has been written, of `files` with their checksums."""
    lines = [f"{checksum_of(file.read_bytes())} {file.name}\n" for file in files]
    write_text(folder / DONE, "".join(["done\n", *lines]))


def check_finished(folder: Path) -> None:
    """Raise a PipelineError where a folder is that of a run, no model's, which has not ended."""
    if (folder / CONFIG).exists() and not is_done(folder) and "model" not in read_config(folder):
        raise PipelineError(
            f"{folder}: an unfinished run; finish it with `run … --out {folder} --resume`"
        )


def check_done(folder: Path) -> None:
    """Compare the files of a folder with the checksums in its DONE mark.

    Raises:
        PipelineError: a file, or the mark itself, is not as it was written.
    """
    mark = folder / DONE
    try:
        _, *lines = mark.read_text(encoding="utf-8").split("\n")
        for line in lines:
            checksum, _, name = line.partition(" ")
            path = folder / name
            if path.is_file() and checksum != checksum_of(path.read_bytes()):
                raise PipelineError(
                    f"{path}: damaged: it is not as it was written; bring it back, or remove "
                    f"{folder} and run again"
                )
    except (OSError, ValueError) as error:
        raise PipelineError(f"{mark}: cannot be read: {error}") from error


def check_free(folder: Path, config: dict[str, Any], *, resume: bool) -> None:
    """Refuse a folder that is in use, before any work is done for it.

    Raises:
        UsageError: the folder is in use and `resume` is off, or belongs to another run.
        PipelineError: its configuration cannot be read.
    """
    # Listed before the look at config.toml: another process may begin the very same run now.
    held = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if (folder / CONFIG).exists():
        if not resume:
            raise UsageError(f"{folder}: holds a run already; pass --resume to go on with it")
        begun = read_config(folder)
        _refuse_other(folder, {key: begun.get(key) for key in config}, config)
        return
    foreign = [name for name in held if not name.startswith(f".{CONFIG}.")]
    if foreign or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is in the way and no run folder; choose another --out")


def begin(folder: Path, config: dict[str, Any], *, resume: bool) -> None:
    """Make a run folder with a config.toml of what decides the run's outcome, or go on with it.

    Raises:
        UsageError: as `check_free`.
        PipelineError: the folder cannot be written.
    """
    check_free(folder, config, resume=resume)
    path = folder / CONFIG
    if not path.exists() and not create_text(path, tomli_w.dumps(config)):
        check_free(folder, config, resume=resume)  # another process has begun it, just now
    _refuse_other(folder, read_config(folder), config)


def _refuse_other(folder: Path, begun: dict[str, Any], config: dict[str, Any]) -> None:
    difference = first_difference(begun, config)
    if difference and difference.startswith("data ="):
        difference = "other graphs (by --data or --collections)"
    if difference:
        back = ", bring the file back" if difference.startswith("source.") else ""
        raise UsageError(
            f"{folder}: was begun with {difference}; choose another --out{back}, or remove it"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run folder's config.toml.

    Raises:
        PipelineError: `folder` is no run folder, or its configuration is damaged.
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder}: no such folder; expected a run folder")
    if not (folder / CONFIG).exists():
        inner = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}")))
        told = f", but holds such: {inner}; pass one" if inner else f"; {CONFIG} is missing"
        raise PipelineError(f"{folder}: not a run folder{told}")
    config = read_toml(folder / CONFIG)
    if not isinstance(config.get("recipe", {}), dict):
        raise PipelineError(f"{folder / CONFIG}: 'recipe' is no table; expected a run's recipe")
    return config


def read_recipe(folder: Path, trust: Container[str] = ()) -> Recipe:
    """Read the recipe of a run folder; `trust` as in `Recipe.from_table`.

    Raises:
        PipelineError: `folder` is no run folder, or its recipe is missing or damaged.
    """
    config = read_config(folder)
    if "recipe" not in config:
        raise PipelineError(f"{folder / CONFIG}: key 'recipe' is missing; expected a run's config")
    return Recipe.from_table(config["recipe"], source=str(folder / CONFIG), trust=trust)


def with_original_name(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe by the name that a run folder has for it, if nothing else differs.

    Args:
        recipe: The recipe.
        folder: A run folder, or one that a run will make.
    """
    if not (folder / CONFIG).is_file():
        return recipe
    table = read_config(folder).get("recipe") or {}
    named = recipe.model_copy(update={"name": table.get("name", recipe.name)})
    return named if named.model_dump(mode="json") == table else recipe


def models_of(run: Path, kind: str, trust: Sequence[str] = ()) -> tuple[Recipe, Sequence[str]]:
    """Return a run's recipe, and the model of each of its members that rank configs of a kind."""
    config, recipe = read_config(run), read_recipe(run, trust)
    every = recipe.models_of(kind) * len(recipe.seeds)
    return recipe, (config["model"],) if "model" in config else every


def first_difference(old: Any, new: Any, key: str = "") -> str | None:
    """Describe where two configurations first differ, names first: "key = old, now new"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}, key=lambda name: (name != "name", name)):
            inner = first_difference(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
            if inner:
                return inner
        return None
    return None if old == new else f"{key} = {old!r}, now {new!r}"


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a configuration's values by dotted key."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
