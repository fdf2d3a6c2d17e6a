"""The stages of a run on their own: train one collection, predict one split."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.progress import log
from data.graph_store.prepare import stored_graphs
from data.tree import (
    LAYOUT_COLLECTIONS,
    LAYOUTS,
    SPLITS,
    Collection,
    collection_named,
    find_graphs,
)
from ensembles.ensemble import ranked_by
from models.config.recipe import Recipe
from models.registry import TrainJob
from models.run_folder import CONFIG, check_free, read_config
from models.train import check_device
from models.training.dataset import split_usable
from models.training.device import gpu_here, tell_device
from pipeline.jobs.files import packing
from pipeline.jobs.workers import HERE, Workers
from pipeline.planning.plan import part_size
from pipeline.run.jobs import Law, Ranking, WholeRun, machine_with, ranking_jobs, training_jobs
from pipeline.run.trackers import logged_to

JUDGED_SPLIT = "valid"


def train_collection(
    data_dir: Path,
    collection: Collection,
    recipe: Recipe,
    out: Path,
    *,
    model: str | None,
    resume: bool,
    workers: Workers = HERE,
    trackers: Sequence[str] = (),
) -> list[Path]:
    """Train a recipe's models, with each of its seeds, on one collection.

    With the recipe's `layout.together`, a layout collection's are trained on all of them.

    Raises:
        UsageError: no such model, a folder holds another run, or there is no GPU.
        PipelineError: nothing to learn from, or a damaged file.
        OutOfTime: the time is over; resumed, it goes on where it stopped.
    """
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    for name in chosen:
        check_device(recipe, name)
    device = tell_device(recipe, gpu_here())
    place = recipe.learned_as(collection)
    learned = LAYOUT_COLLECTIONS if place == LAYOUTS else (collection,)
    files = stored_graphs(data_dir, collections=learned, splits=("train",), pack=packing(workers))
    usable, unusable = split_usable(files)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not usable:
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    trainings = [
        (place, TrainJob(name, recipe, usable, seed, out / f"{name}-seed{seed}"))
        for name in chosen
        for seed in recipe.seeds
    ]
    folders = [training.run_dir for _, training in trainings]
    for folder in folders:
        check_free(folder, {}, resume=resume)
    sources = find_graphs(data_dir, collections=learned, splits=("train",))
    law = Law(recipe, [part_size(sources)], machine_with(device))
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do(list(training_jobs(trainings, law, resume=resume)))
    return folders


def predict_split(
    data_dir: Path,
    run: Path,
    *,
    split: str,
    out: Path | None,
    collection: str | None,
    workers: Workers = HERE,
) -> tuple[Path, int]:
    """Score the configs of a split with a run's models: of valid as its recipe says, else all.

    Args:
        out: parquet file; RUN/scores-SPLIT.parquet if None.
        collection: which to score; None takes the model's own.

    Raises:
        PipelineError: no such split, a damaged file, or models of another kind.
    """
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    wanted = collection_named(collection) if collection else None
    own = ranked_by(run, wanted)
    target = wanted or own
    files = stored_graphs(data_dir, collections=(target,), splits=(split,), pack=packing(workers))
    path = out or run / f"scores-{split}.parquet"
    recipe, models = models_of(run, target.kind)
    at_most = recipe.valid_configs if split == JUDGED_SPLIT else 0
    sources = find_graphs(data_dir, collections=(target,), splits=(split,))
    law = Law(recipe, [part_size(sources)], machine_with(tell_device(recipe, gpu_here())))
    parts = path.with_name(f".{path.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)  # of a call that was killed, perhaps on other data
    member = {parts / path.name: WholeRun(run, wanted)}
    ranking = Ranking(target, split, files, member, models, at_most)
    try:
        workers.do(list(ranking_jobs([ranking], set(), law)))
        ranking.join(law)
        (parts / path.name).replace(path)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return path, len(files)


def models_of(run: Path, kind: str) -> tuple[Recipe, Sequence[str]]:
    """Return a run's recipe, and the model of each of its members that rank configs of a kind."""
    config = read_config(run)
    recipe = Recipe.from_table(config["recipe"], source=str(run / CONFIG))
    every = recipe.models_of(kind) * len(recipe.seeds)
    return recipe, (config["model"],) if "model" in config else every
