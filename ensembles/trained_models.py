"""Find, check and copy the run folders of models that were trained elsewhere.

Kaggle mounts datasets and kernel outputs read-only, in folders with any name and depth. So only the
file config.toml identifies a model.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from common.credentials import refuse_link
from common.errors import PipelineError, blame
from data.tree import LAYOUTS, Collection
from ensembles.ensemble import FINAL, members_of
from models.config.recipe import Recipe
from models.run_folder import CONFIG, first_difference, is_done, missing_run, read_config

# Folder of the final models in a folder of `train`.
FINAL_FOLDER = "final"
# These folders have thousands of files and no model.
_NO_RUN_FOLDERS = frozenset({"npz", "__pycache__"})

PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)

# Slug of the collection that a model learned from, with FINAL if it learned from the valid split,
# and "<model>-seed<number>".
Key = tuple[str, str]


def find_models(root: Path, is_wanted: Callable[[Key], bool] = lambda _: True) -> dict[Key, Path]:
    """Find the run folders of models below a folder.

    If a model has several folders, the first finished one counts, sorted by path.
    """
    if not root.is_dir():
        raise missing_run(root, "a folder with run folders")
    folders: dict[Key, Path] = {}
    # Links are followed, so a folder may appear twice or contain itself.
    real_paths = set[str]()
    for place, below, files in os.walk(root, followlinks=True):
        folder, real = Path(place), os.path.realpath(place)
        if real in real_paths:
            below.clear()
            continue
        real_paths.add(real)
        below[:] = sorted(n for n in below if not n.startswith(".") and n not in _NO_RUN_FOLDERS)
        config = read_config(folder) if CONFIG in files else {}
        # The config of a whole run has neither key.
        if "model" not in config or "seed" not in config:
            continue
        collection_name = LAYOUTS.name if "collections" in config else config.get("collection", "")
        with blame(folder / CONFIG, "the configuration of a run"):
            is_final = "valid" in config.get("recipe", {}).get("fit_on", ())
            slug = collection_name.replace(":", "-") + FINAL * is_final
        key = slug, f"{config['model']}-seed{config['seed']}"
        # The key becomes a path below the folder of a run or of a dataset.
        if not all(map(PLAIN_NAME.fullmatch, key)):
            requirement = "expected the collection, model and seed of a run"
            raise PipelineError(f"{folder / CONFIG}: names {'/'.join(key)!r}; {requirement}")
        if not is_wanted(key):
            continue
        if is_done(folder) > is_done(folders.setdefault(key, folder)):
            folders[key] = folder
    return folders


def continue_earlier(earlier: Path, collection: Collection, out: Path) -> list[Path]:
    """Copy the models of an earlier training, finished or not, to resume them."""
    folders = {collection.slug: out, f"{collection.slug}{FINAL}": out / FINAL_FOLDER}
    models = find_models(earlier, lambda key: key[0] in folders)
    return take_models({folders[place] / member: path for (place, member), path in models.items()})


def models_to_take(
    source: Path, recipe: Recipe, collections: Iterable[Collection], out: Path
) -> dict[Path, Path]:
    """Return the folder of each trained model that a run folder lacks, by its place in `out`."""
    targets = {
        (member.folder.parent.name, member.name): (member.folder, settings)
        for collection in collections
        for settings in [recipe.of(recipe.learned_as(collection)).model_dump(mode="json")]
        for final in (False, True)
        for member in members_of(recipe, collection, out, final=final)
        if not is_done(member.folder)
    }
    models = find_models(source, targets.__contains__)
    missing = sorted(key for key in targets if key not in models or not is_done(models[key]))
    if missing:
        name, n = "/".join(missing[0]), len(missing) - 1
        raise PipelineError(
            f"{source}: no trained model {name}{f' and {n} more' if n else ''}; expected "
            f"every model and seed of recipe {recipe.name}; attach or add the missing models"
        )
    for key, folder in models.items():
        config, settings = read_config(folder), targets[key][1]
        for part in (config["model"], "features"):
            # The folder has one seed, and its place says what it learned.
            old, new = (
                {k: v for k, v in table.get(part, {}).items() if k not in ("seeds", "fit_on")}
                for table in (config["recipe"], settings)
            )
            if difference := first_difference(old, new, part):
                requirement = f"expected a model of recipe {recipe.name}"
                raise PipelineError(f"{folder}: was trained with {difference}; {requirement}")
    return {targets[key][0]: folder for key, folder in models.items()}


def take_models(sources: Mapping[Path, Path]) -> list[Path]:
    """Copy run folders from their sources, by target."""
    missing = {target: folder for target, folder in sources.items() if not target.exists()}
    for target, folder in missing.items():
        try:
            parent = target.parent
            parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=parent) as scratch:
                inner = Path(scratch) / target.name
                inner.mkdir()
                for path in folder.iterdir():
                    if path.is_file() and not path.name.startswith("."):
                        refuse_link(path)
                        shutil.copyfile(path, inner / path.name)
                inner.rename(target)
        except OSError as error:
            reason = f"cannot be copied from {folder}: {error.strerror}"
            raise PipelineError(f"{target}: {reason}") from error
    return list(missing)
