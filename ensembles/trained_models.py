"""Run folders of models that were trained elsewhere: found at any depth, checked, copied.

Datasets and outputs of other kernels are mounted read-only, under folders that their owners named,
so a model is known by its config.toml alone.
"""

import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from data.tree import LAYOUTS, Collection
from ensembles.members import members_of
from models.config.recipe import Recipe
from models.run_folder import CONFIG, first_difference, is_done, read_config

_NO_RUN_FOLDERS = frozenset({"npz", "__pycache__"})  # thousands of files, none of them a model


@dataclass(frozen=True)
class FoundModel:
    """A model's run folder."""

    folder: Path
    place: str  # the slug of what it learned from
    member: str  # "<model>-seed<number>"
    config: dict[str, Any]

    @property
    def is_done(self) -> bool:
        return is_done(self.folder)


def find_models(root: Path) -> list[FoundModel]:
    """List the models' run folders below `root`, by path; hidden folders are left out.

    Raises:
        PipelineError: `root` is no folder, or a configuration is damaged.
    """
    if not root.is_dir():
        raise PipelineError(f"{root}: no such folder; expected one that holds run folders")
    found = []
    for place, below, files in os.walk(root):
        below[:] = sorted(n for n in below if not n.startswith(".") and n not in _NO_RUN_FOLDERS)
        config = read_config(Path(place)) if CONFIG in files else {}
        if "model" in config and "seed" in config:  # a whole run's own folder holds none itself
            learned = LAYOUTS.name if "collections" in config else config.get("collection", "")
            member = f"{config['model']}-seed{config['seed']}"
            found.append(FoundModel(Path(place), learned.replace(":", "-"), member, config))
    return found


def continue_earlier(earlier: Path, collection: Collection, out: Path) -> list[Path]:
    """Copy what an earlier training of a collection, or of LAYOUTS, left, to go on with.

    What lies in `out` stays.

    Raises:
        PipelineError: two unfinished trainings of one model, a damaged one, or no space.
    """
    found = (model for model in find_models(earlier) if model.place == collection.slug)
    copies = [(model.folder, out / model.member) for model in one_of_each(found).values()]
    return [target for folder, target in copies if _copy(folder, target)]


def models_to_take(
    source: Path, recipe: Recipe, collections: Iterable[Collection], out: Path
) -> dict[Path, Path]:
    """Find the trained models of `collections`, every member that the run folder `out` lacks.

    Returns:
        Their folders in `out`, and where they are copied from.

    Raises:
        PipelineError: a member is missing, unfinished, there twice or of other settings.
    """
    wanted = {
        (member.folder.parent.name, member.name): member.folder
        for collection in collections
        for member in members_of(recipe, collection, out)
        if not is_done(member.folder)
    }
    found = (model for model in find_models(source) if (model.place, model.member) in wanted)
    models = one_of_each(found)
    missing = sorted(key for key in wanted if key not in models or not models[key].is_done)
    if missing:
        first, more = "/".join(missing[0]), len(missing) - 1
        raise PipelineError(
            f"{source}: no trained model {first}{f' and {more} more' if more else ''}; expected "
            f"every model and seed of recipe {recipe.name}: attach or add what is missing"
        )
    for model in models.values():
        _check_settings(model, recipe)
    return {wanted[key]: model.folder for key, model in models.items()}


def take_models(found: Mapping[Path, Path]) -> None:
    """Copy what `models_to_take` has found; what the run has already stays.

    Raises:
        PipelineError: a folder cannot be copied.
    """
    for target, folder in found.items():
        _copy(folder, target)


def one_of_each(models: Iterable[FoundModel]) -> dict[tuple[str, str], FoundModel]:
    """Return one of each model by place and member: a finished one if there is one.

    Raises:
        PipelineError: two of them differ.
    """
    chosen: dict[tuple[str, str], FoundModel] = {}
    for model in models:
        key = model.place, model.member
        other = chosen.get(key)
        if other is None or (model.is_done and not other.is_done):
            chosen[key] = model
        elif model.is_done == other.is_done and not _same_content(model.folder, other.folder):
            raise PipelineError(
                f"{model.folder}: the same model is in {other.folder}; expected one of the two: "
                "detach or move the other"
            )
    return chosen


def _check_settings(model: FoundModel, recipe: Recipe) -> None:
    wanted = recipe.model_dump(mode="json")
    for part in (part for part in (model.config["model"], "features") if part in wanted):
        difference = first_difference(model.config["recipe"].get(part), wanted[part], part)
        if difference:
            raise PipelineError(
                f"{model.folder}: was trained with {difference}; expected a model of recipe "
                f"{recipe.name}"
            )


def _same_content(one: Path, other: Path) -> bool:
    names = _names(one)
    return names == _names(other) and not any(
        filecmp.cmpfiles(one, other, names, shallow=False)[1:]
    )


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


def _copy(source: Path, target: Path) -> bool:
    if target.exists():
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", suffix=".tmp", dir=target.parent
        ) as made:
            inner = Path(made) / target.name
            inner.mkdir()
            for name in _names(source):
                shutil.copyfile(source / name, inner / name)
            inner.rename(target)
    except OSError as error:
        reason = f"cannot be copied from {source}: {error.strerror}"
        raise PipelineError(f"{target}: {reason}") from error
    return True
