"""Two stages of a run alone: train one collection, or score one split."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from common.errors import PipelineError, UsageError
from common.files import check_writable
from common.jobs.workers import HERE, Workers
from common.machine import thread_limits
from common.progress import log
from data.graph_store.prepare import stored_graphs
from data.labels import split_usable
from data.tree import LAYOUT_COLLECTIONS, LAYOUTS, SPLITS, Collection, collection_named
from ensembles.ensemble import load_ranker, ranked_by
from ensembles.scores import scores_by_graph
from models.config.recipe import Recipe
from models.predict import sampled
from models.registry import TrainJob, model_entry
from models.run_folder import CONFIG, check_free, models_of, with_original_name
from models.train import check_packages
from models.training.device import tell_device
from pipeline.run.jobs import (
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
    workers: Workers = HERE,
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
        resume: Whether begun trainings are resumed.
        workers: Workers that train.
        trackers: Trackers that show the trainings, see `known_trackers`.

    Raises:
        UsageError: No such model, a folder holds another run, or there is no GPU.
        PipelineError: Nothing to learn from, or a damaged file.
        OutOfTime: The time is over. The same call resumes.
    """
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    workers.check()
    check_packages()
    for name in chosen:
        check_device(recipe, name)
    has_gpu = tell_device(recipe)["device"] != "CPU"
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


def predict_split(
    data_dir: Path,
    run: Path,
    *,
    split: str,
    out: Path | None,
    collection: str | None,
    workers: Workers = HERE,
    trust: Sequence[str] = (),
) -> tuple[Path, int]:
    """Score the configs of a split with a run's models: of valid as its recipe says, else all.

    Args:
        data_dir: Folder of the data.
        run: Folder of the run, or of a single model.
        split: The split.
        out: Parquet file. None takes RUN/scores-SPLIT.parquet.
        collection: Collection to score. None takes the model's own.
        workers: Workers that pack files.
        trust: Custom models that may be imported, as "package.module:Class".

    Returns:
        The parquet file, and the number of graphs.

    Raises:
        UsageError: A custom model is not in `trust`.
        PipelineError: No such split, a damaged file, or models of another kind.
    """
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    wanted = collection_named(collection) if collection else None
    learned = ranked_by(run, wanted)  # refuses a run without models of that kind
    target = wanted or learned
    path = out or run / f"scores-{split}.parquet"
    workers.check()
    check_writable(path)
    recipe, models = models_of(run, target.kind, trust)
    for model in models:
        model_entry(recipe, model)
    files = stored_graphs(data_dir, collections=(target,), splits=(split,), workers=workers)
    tell_device(recipe)
    with TemporaryDirectory(dir=path.parent) as folder, thread_limits(recipe.n_threads):
        scores = Path(folder) / path.name
        scores_by_graph(
            {scores: partial(load_ranker, run, collection=collection, trust=trust)},
            files,
            what=f"predict {target.name}/{split}",
            subsets=sampled(files, recipe.valid_configs if split == "valid" else 0),
        )
        scores.replace(path)
    return path, len(files)
