"""One stage of a run without the others: train one collection."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.files import check_writable
from common.jobs.workers import INLINE, Workers
from common.progress import log
from data.graph_store.prepare import stored_graphs
from data.labels import split_usable
from data.tree import LAYOUT_COLLECTIONS, LAYOUTS, Collection
from models.config.recipe import Recipe
from models.registry import TrainJob
from models.run_folder import CONFIG, check_free, with_original_name
from models.train import check_packages
from models.training.device import log_device
from pipeline.run.jobs import training_jobs
from pipeline.run.trackers import logged_to


def train_collection(
    data_dir: Path,
    collection: Collection,
    recipe: Recipe,
    out: Path,
    *,
    model: str | None,
    resume: bool,
    workers: Workers = INLINE,
    trackers: Sequence[str] = (),
) -> list[Path]:
    """Train a recipe's models, with each of its seeds, on one collection.

    With the recipe's `layout.together`, the models of a layout collection learn from all of them.

    Args:
        data_dir: Folder of the data.
        collection: The collection.
        recipe: The recipe.
        out: Folder of the models' folders.
        model: The model to train. None trains all models of the recipe.
        resume: Whether interrupted trainings are resumed.
        workers: Workers that train.
        trackers: Trackers that show the trainings, see `known_trackers`.

    Raises:
        UsageError: There is no such model or no GPU, or a folder has another run.
        PipelineError: Nothing to learn from, or a damaged file.
        OutOfTime: The time is over. The same call resumes.
    """
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    workers.check()
    check_packages()
    has_gpu = log_device(recipe)["device"] != "CPU"
    recipe = with_original_name(recipe, out / f"{chosen[0]}-seed{recipe.seeds[0]}")
    folders = [out / f"{name}-seed{seed}" for name, seed in product(chosen, recipe.seeds)]
    for folder in folders:
        check_free(folder, {}, resume=resume)
    check_writable(folders[0] / CONFIG)
    place = recipe.learned_as(collection)
    learned = LAYOUT_COLLECTIONS if place == LAYOUTS else (collection,)
    files = stored_graphs(data_dir, collections=learned, splits=("train",), workers=workers)
    usable, unusable = split_usable(files)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not usable:
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    trainings = [
        (place, TrainJob(name, recipe, usable, seed, folder))
        for (name, seed), folder in zip(product(chosen, recipe.seeds), folders, strict=True)
    ]
    jobs = list(training_jobs(trainings, has_gpu=has_gpu, resume=resume))
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do(jobs, out)
    return folders
