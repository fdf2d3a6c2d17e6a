"""One stage of a run without the others: train one collection."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError, UsageError, one_of
from common.files import check_writable
from common.jobs.workers import INLINE, Workers
from common.progress import log
from data.graph_store.prepare import stored_graphs
from data.labels import split_usable
from data.tree import (
    COLLECTIONS,
    LAYOUT_COLLECTIONS,
    LAYOUTS,
    SPLITS,
    Collection,
    GraphFile,
    find_graphs,
)
from ensembles.ensemble import FINAL
from ensembles.trained_models import FINAL_FOLDER, find_models
from models.config.recipe import Recipe
from models.registry import model_entry
from models.run_folder import CONFIG, check_free, is_done, with_original_name
from models.train import check_packages
from models.training.device import log_device
from pipeline.run.jobs import (
    check_left_out,
    check_starts,
    splits_of,
    training_jobs,
    trainings_of,
)
from pipeline.run.trackers import logged_to


def train_collection(
    data_dir: Path,
    collection: Collection,
    recipe: Recipe,
    out: Path,
    *,
    model: str | None,
    resume: bool,
    earlier: Path | None = None,
    workers: Workers = INLINE,
    trackers: Sequence[str] = (),
) -> list[Path]:
    """Train a recipe's models, with each of its seeds, on one collection.

    With the recipe's `layout.together`, the models of a layout collection learn from all of them.

    Args:
        model: The model to train. None trains all models of the recipe.
        earlier: Folder with the trained networks that a network starts from, at any depth.
    """
    place, all_settings = recipe.learned_as(collection), recipe
    recipe = recipe.of(place)
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {one_of(model, names)}")
    models = names if model is None else (model,)
    workers.check()
    check_packages()
    has_gpu = log_device(recipe)["device"] != "CPU"
    first = out / f"{models[0]}-seed{recipe.seeds_of(models[0])[0]}"
    name = with_original_name(recipe.fits(models[0])[0], first).name
    recipe = recipe.model_copy(update={"name": name})

    def folder_of(start: Collection, fit: Recipe, name: str) -> Path:
        if start == place:
            return out / (FINAL_FOLDER * fit.is_final) / name
        return _earlier_folder(earlier, start, fit, name)

    check_starts(all_settings, (place,), COLLECTIONS)
    # Without graphs, the trainings show the folders before any work.
    plans = [*trainings_of(recipe, place, models, folder_of)]
    folders = [plan.run_dir for _, plan in plans]
    for folder in folders:
        check_free(folder, {}, resume=resume)
    check_writable(folders[0] / CONFIG)
    usable, graphs = _graphs(data_dir, place, recipe, models, workers)
    trainings = [*trainings_of(recipe, place, models, folder_of, usable=usable, graphs=graphs)]
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do([*training_jobs(trainings, has_gpu=has_gpu, resume=resume)], out)
    return folders


def _graphs(
    data_dir: Path, place: Collection, recipe: Recipe, models: Sequence[str], workers: Workers
) -> tuple[list[GraphFile], list[GraphFile]]:
    """Return the usable graphs of the splits to learn from, and all packed graphs."""
    places = LAYOUT_COLLECTIONS if place == LAYOUTS else (place,)
    check_left_out(recipe, find_graphs(data_dir, collections=places, splits=SPLITS), places)
    splits = splits_of(recipe, models)
    reads_ranked = any(model_entry(recipe, name).reads_ranked for name in models)
    parts = SPLITS if reads_ranked else splits
    graphs = stored_graphs(data_dir, collections=places, splits=parts, workers=workers)
    # As in a run, which has the graphs of all collections' valid splits last.
    files = sorted((file for file in graphs if file.split in splits), key=lambda f: f.split)
    usable, unusable = split_usable(files, recipe.leave_out)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not any(file.split == "train" for file in usable):
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    return usable, graphs


def _earlier_folder(root: Path | None, start: Collection, fit: Recipe, name: str) -> Path:
    """Return the folder below `root` of the trained network that a training starts from."""
    key = start.slug + FINAL * fit.is_final, name
    folder = find_models(root, key.__eq__).get(key) if root else None
    if folder is None or not is_done(folder):
        raise UsageError(
            f"{name.partition('-seed')[0]}.training.start_from = '{start.name}': no trained "
            f"{'/'.join(key)}; train {start.name} first, and pass its folder as --resume-from"
        )
    return folder
