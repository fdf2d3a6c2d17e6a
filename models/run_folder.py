"""Run folders: configuration, metrics, weights, and a DONE mark that is written last."""

from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from common.errors import PipelineError, UsageError, nearest
from common.files import checksum_of, create_text, missing_path, read_bytes, write_text
from common.settings import RUN_CONFIG, read_toml
from models.config.recipe import Recipe

CONFIG = RUN_CONFIG
DONE = "DONE"
METRICS = "metrics.jsonl"
REPORT = "report.json"
REPORT_PICTURE = "report.png"
# Runs next to a missing run that its message lists.
MAX_LISTED = 8


def is_done(folder: Path) -> bool:
    return (folder / DONE).exists()


def mark_done(folder: Path, files: Iterable[Path] = ()) -> None:
    """Write the DONE mark of a complete folder."""
    lines = [f"{checksum_of(read_bytes(file))} {file.name}\n" for file in files]
    write_text(folder / DONE, "".join(["done\n", *lines]))


def missing_run(run: Path, expected: str = "a run folder") -> PipelineError:
    """Return the error of a missing run folder, with the runs next to it and in runs/."""
    folders = (Path("runs"), run.parent)
    runs = {path.parent.name: path.parent for f in folders for path in f.glob(f"*/{CONFIG}")}
    near = runs.get(nearest(run.name, runs))
    if run.exists() or not runs:
        return missing_path(run, expected)
    listed = sorted(map(str, runs.values()))
    more = f" and {len(listed) - MAX_LISTED} more" * (len(listed) > MAX_LISTED)
    hint = f"; runs: {', '.join(listed[:MAX_LISTED])}{more}"
    hint += f"; did you mean {near}?" if near else ""
    return PipelineError(f"{run}: no such file or folder; expected {expected}{hint}")


def check_finished(folder: Path) -> None:
    """Reject the folder of an unfinished run that is not a model's run."""
    if (folder / CONFIG).exists() and not is_done(folder) and "model" not in read_config(folder):
        raise PipelineError(
            f"{folder}: an unfinished run; finish it with `run … --out {folder} --resume`"
        )


def check_done(folder: Path) -> None:
    """Compare the files of a folder with the checksums in its DONE mark."""
    lines = read_bytes(folder / DONE).decode(errors="replace").splitlines()
    for line in lines[1:]:
        checksum, _, name = line.partition(" ")
        if Path(name).name != name or name == ".." or len(name.encode()) > 255:
            raise PipelineError(
                f"{folder / DONE}: names {name!r}; expected the name of a file in the same folder"
            )
        path = folder / name
        if not path.is_file():
            fault = "missing; expected a file of the finished folder"
        elif checksum != checksum_of(read_bytes(path)):
            fault = "damaged: it is not as it was written"
        else:
            continue
        raise PipelineError(f"{path}: {fault}; bring it back, or remove {folder} and run again")


def check_free(folder: Path, config: dict[str, Any], *, resume: bool) -> None:
    """Reject a folder of another run, or one in use if `resume` is off, before any work for it."""
    # The list must precede the check of config.toml, because another process may begin the run.
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if (folder / CONFIG).exists():
        if not resume:
            raise UsageError(f"{folder}: contains a run already; pass --resume to resume it")
        old = read_config(folder)
        _refuse_other(folder, {key: old.get(key) for key in config}, config)
        return
    has_files = any(not name.startswith(f".{CONFIG}.") for name in names)
    if has_files or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is in the way and no run folder; choose another --out")


def begin(folder: Path, config: dict[str, Any], *, resume: bool) -> None:
    """Create a run folder with a config.toml, or resume it."""
    check_free(folder, config, resume=resume)
    path = folder / CONFIG
    if not path.exists() and not create_text(path, tomli_w.dumps(config)):
        # Another process has just begun a run.
        check_free(folder, config, resume=resume)
    _refuse_other(folder, read_config(folder), config)


def _refuse_other(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    difference = first_difference(old, new)
    if difference and difference.startswith(("data =", "data.")):
        difference = "other graphs (by --data or --collections)"
    if difference:
        back = ", bring the file back" if difference.startswith("source.") else ""
        raise UsageError(
            f"{folder}: was begun with {difference}; choose another --out{back}, or remove it"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run folder's config.toml."""
    if not folder.is_dir():
        raise missing_run(folder)
    if not (folder / CONFIG).exists():
        inner = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}")))
        reason = f", but contains such: {inner}; pass one" if inner else f"; {CONFIG} is missing"
        raise PipelineError(f"{folder}: not a run folder{reason}")
    config = read_toml(folder / CONFIG)
    if not isinstance(config.get("recipe", {}), dict):
        raise PipelineError(f"{folder / CONFIG}: 'recipe' is no table; expected a run's recipe")
    return config


def read_recipe(folder: Path, trust: Container[str] = ()) -> Recipe:
    """Read the recipe of a run folder, with the custom models in `trust`."""
    config = read_config(folder)
    if "recipe" not in config:
        raise PipelineError(f"{folder / CONFIG}: key 'recipe' is missing; expected a run's config")
    return Recipe.from_table(config["recipe"], source=str(folder / CONFIG), trust=trust)


def with_original_name(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with the name in a run folder, if nothing else differs."""
    if not (folder / CONFIG).is_file():
        return recipe
    table = read_config(folder).get("recipe") or {}
    original = recipe.model_copy(update={"name": table.get("name", recipe.name)})
    return original if original.model_dump(mode="json") == table else recipe


def models_of(run: Path, kind: str, trust: Sequence[str] = ()) -> tuple[Recipe, Sequence[str]]:
    """Return a run's recipe, and the model of each member that ranks "layout" or "tile" configs."""
    config, recipe = read_config(run), read_recipe(run, trust)
    if "model" in config:
        return recipe, [config["model"]]
    return recipe, [model for model in recipe.models_of(kind) for _ in recipe.seeds_of(model)]


def first_difference(old: Any, new: Any, key: str = "") -> str | None:
    """Describe the first difference of two configurations as "key = old, now new", names first."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}, key=lambda name: (name != "name", name)):
            inner = first_difference(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
            if inner:
                return inner
        return None
    texts = ("unset" if value is None else repr(value) for value in (old, new))
    return None if old == new else f"{key} = {', now '.join(texts)}"


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a configuration's values by dotted key."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
