"""Run folders of models that were trained elsewhere: found at any depth, checked, copied.

Datasets and outputs of other kernels are mounted read-only, under folders that their owners named,
so a model is known by its config.toml alone.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from common.errors import PipelineError
from data.tree import LAYOUTS, Collection
from ensembles.ensemble import members_of
from models.config.recipe import Recipe
from models.run_folder import CONFIG, first_difference, is_done, read_config

_NO_RUN_FOLDERS = frozenset({"npz", "__pycache__"})  # thousands of files, none of them a model

Key = tuple[str, str]  # the slug of what a model learned from, and "<model>-seed<number>"


def find_models(root: Path, is_wanted: Callable[[Key], bool] = lambda _: True) -> dict[Key, Path]:
    """Find the models' run folders below `root`; hidden folders are left out.

    Of several of one model a finished one is taken, the first by path.

    Raises:
        PipelineError: `root` is no folder, or a configuration is damaged.
    """
    if not root.is_dir():
        raise PipelineError(f"{root}: no such folder; expected one that holds run folders")
    found: dict[Key, Path] = {}
    seen = set[str]()  # links are followed, not in a circle
    for place, below, files in os.walk(root, followlinks=True):
        folder, real = Path(place), os.path.realpath(place)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(n for n in below if not n.startswith(".") and n not in _NO_RUN_FOLDERS)
        config = read_config(folder) if CONFIG in files else {}
        if "model" not in config or "seed" not in config:  # a whole run's own folder holds none
            continue
        learned = LAYOUTS.name if "collections" in config else config.get("collection", "")
        key = learned.replace(":", "-"), f"{config['model']}-seed{config['seed']}"
        if not is_wanted(key):
            continue
        if is_done(folder) > is_done(found.setdefault(key, folder)):
            found[key] = folder
    return found


def continue_earlier(earlier: Path, collection: Collection, out: Path) -> list[Path]:
    """Copy what an earlier training of a collection, or of LAYOUTS, left, to go on with.

    What lies in `out` stays.

    Raises:
        PipelineError: a damaged training, or no space.
    """
    found = find_models(earlier, lambda key: key[0] == collection.slug)
    return take_models({out / member: folder for (_, member), folder in found.items()})


def models_to_take(
    source: Path, recipe: Recipe, collections: Iterable[Collection], out: Path
) -> dict[Path, Path]:
    """Find the trained models of `collections`, every member that the run folder `out` lacks.

    Returns:
        Their folders in `out`, and where they are copied from.

    Raises:
        PipelineError: a member is missing, unfinished, or of other settings.
    """
    wanted = {
        (member.folder.parent.name, member.name): member.folder
        for collection in collections
        for member in members_of(recipe, collection, out)
        if not is_done(member.folder)
    }
    models = find_models(source, wanted.__contains__)
    missing = sorted(key for key in wanted if key not in models or not is_done(models[key]))
    if missing:
        first, more = "/".join(missing[0]), len(missing) - 1
        raise PipelineError(
            f"{source}: no trained model {first}{f' and {more} more' if more else ''}; expected "
            f"every model and seed of recipe {recipe.name}: attach or add what is missing"
        )
    settings = recipe.model_dump(mode="json")
    for folder in models.values():
        config = read_config(folder)
        for part in (config["model"], "features"):
            if difference := first_difference(config["recipe"].get(part), settings.get(part), part):
                expected = f"expected a model of recipe {recipe.name}"
                raise PipelineError(f"{folder}: was trained with {difference}; {expected}")
    return {wanted[key]: folder for key, folder in models.items()}


def take_models(found: Mapping[Path, Path]) -> list[Path]:
    """Copy what `models_to_take` has found; return the new folders: what is there already stays.

    Raises:
        PipelineError: a folder cannot be copied.
    """
    missing = {target: folder for target, folder in found.items() if not target.exists()}
    for target, folder in missing.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
            ) as made:
                inner = Path(made) / target.name
                inner.mkdir()
                for name in _names(folder):
                    shutil.copyfile(folder / name, inner / name)
                inner.rename(target)
        except OSError as error:
            reason = f"cannot be copied from {folder}: {error.strerror}"
            raise PipelineError(f"{target}: {reason}") from error
    return list(missing)


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
