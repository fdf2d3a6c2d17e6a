"""One stage of a run without the others: train one collection."""

from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError, UsageError
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
    find_graphs,
)
from ensembles.ensemble import FINAL
from ensembles.trained_models import FINAL_FOLDER, find_models
from models.config.recipe import Recipe
from models.registry import TrainJob, model_entry
from models.run_folder import CONFIG, check_free, is_done, with_original_name
from models.train import check_packages
from models.training.device import log_device
from pipeline.run.jobs import (
    check_left_out,
    check_starts,
    ranked_files,
    splits_of,
    start_of,
    training_jobs,
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
        trackers: Trackers that show the trainings, see `known_trackers`.

    Raises:
        UsageError: There is no such model or no GPU, or a folder has another run.
        OutOfTime: The time is over. The same call resumes.
    """
    place, whole = recipe.learned_as(collection), recipe
    recipe = recipe.of(place)
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    workers.check()
    check_packages()
    has_gpu = log_device(recipe)["device"] != "CPU"
    first = out / f"{chosen[0]}-seed{recipe.seeds_of(chosen[0])[0]}"
    named = with_original_name(recipe.fits(chosen[0])[0], first).name
    recipe = recipe.model_copy(update={"name": named})
    members = [
        (fit, name, seed, out / (FINAL_FOLDER * fit.is_final) / f"{name}-seed{seed}")
        for name in chosen
        for fit in recipe.fits(name)
        for seed in recipe.seeds_of(name)
    ]
    folders = [folder for *_, folder in members]
    for folder in folders:
        check_free(folder, {}, resume=resume)
    check_writable(folders[0] / CONFIG)
    learned = LAYOUT_COLLECTIONS if place == LAYOUTS else (collection,)
    check_starts(whole, (place,), COLLECTIONS)
    starts = {member[3]: _start(*member[:2], member[3].name, place, earlier) for member in members}
    splits = splits_of(recipe, chosen)
    check_left_out(recipe, find_graphs(data_dir, collections=learned, splits=SPLITS), learned)
    reads_ranked = any(model_entry(recipe, name).reads_ranked for name in chosen)
    packed = SPLITS if reads_ranked else splits
    every = stored_graphs(data_dir, collections=learned, splits=packed, workers=workers)
    # As in a run, which has the graphs of all collections' valid splits last.
    files = sorted((file for file in every if file.split in splits), key=lambda f: f.split)
    usable, unusable = split_usable(files, recipe.leave_out)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not any(file.split == "train" for file in usable):
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    trainings = [
        (place, TrainJob(name, fit, files, seed, folder, starts[folder], ranked))
        for fit, name, seed, folder in members
        for files in [[file for file in usable if file.split in fit.fit_on]]
        for ranked in [ranked_files(recipe.fits(name), fit, name, every)]
    ]
    jobs = list(training_jobs(trainings, has_gpu=has_gpu, resume=resume))
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do(jobs, out)
    return folders


def _start(
    recipe: Recipe, model: str, member: str, place: Collection, root: Path | None
) -> Path | None:
    """Return the trained network that a training starts from, found below a folder."""
    start = start_of(recipe, model, place)
    if start is None:
        return None
    key = start.slug + FINAL * recipe.is_final, member
    folder = find_models(root, key.__eq__).get(key) if root else None
    if folder is None or not is_done(folder):
        raise UsageError(
            f"{model}.training.start_from = '{start.name}': no trained {'/'.join(key)}; train "
            f"{start.name} first, and pass its folder as --resume-from"
        )
    return folder
