"""The stages of a run on their own: train one collection, predict one split, blend score files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from common.errors import PipelineError, UsageError
from data.graph_store.prepare import stored_graphs
from data.tree import LAYOUT_COLLECTIONS, SPLITS, Collection, collection_named, find_graphs
from ensembles.blend import METHODS, blend, member_weights
from ensembles.diversify_picks import USUAL_SPREAD, spread_table
from ensembles.ensemble import load_ensemble
from models.config.recipe import Recipe
from models.predict import read_scores, write_scores
from models.registry import model_entry
from models.shared_training import SHARED_FOLDER, shared_model, shared_steps
from models.train import check_device, train_model
from models.training.dataset import split_usable
from models.training.jobs import Progress, TrainJob
from models.training.torchrun import check_processes
from submissions.write import submission_rows, write_submission

TILE = collection_named("tile:xla")


def train_collection(
    data_dir: Path,
    collection: Collection,
    recipe: Recipe,
    out: Path,
    *,
    model: str | None,
    shared_folder: Path | None = None,
    resume: bool,
    deadline: float | None = None,
    progress: Progress | None,
    say: Callable[[str], None],
) -> list[Path]:
    """Train a recipe's models, with each of its seeds, on one collection.

    Args:
        model: only this one; all of the recipe's if None.
        shared_folder: holds, or gets, the models of all layout collections that this one's begin
            from, where the recipe has such; `out`/layout-shared if None.
        deadline: of time.monotonic(), when to stop; None = never.

    Returns:
        The run folders, below `out`.

    Raises:
        UsageError: the recipe has no such model, a folder holds another run, torchrun started
            another number of processes than the recipe has, or there is no GPU as it asks for.
        PipelineError: nothing to learn from, or a damaged file.
        OutOfTime: the deadline is over; resumed, it goes on where it stopped.
    """
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    for name in chosen:
        check_processes(name, model_entry(name).training_of(recipe))
        check_device(recipe, name)
    shares = any(shared_steps(recipe, name) for name in chosen)
    needed = LAYOUT_COLLECTIONS if shares else (collection,)
    files = stored_graphs(data_dir, collections=needed, splits=("train",), progress=progress)
    usable, unusable = split_usable(files)
    for item in unusable:
        say(f"left out of training: {item.file.submission_id}: {item.reason}")
    own = [file for file in usable if file.collection == collection]
    if not own:
        raise PipelineError(f"{data_dir}: {collection.name} has no train graph to learn from")
    folders = []
    for name in chosen:
        for seed in recipe.seeds:
            folder = out / f"{name}-seed{seed}"
            below = shared_folder or out / SHARED_FOLDER
            shared = shared_model(recipe, name, seed, usable, below)
            job = TrainJob(name, recipe, own, seed, folder, progress, deadline, shared=shared)
            train_model(job, collection, resume=resume)
            folders.append(folder)
    return folders


def predict_split(
    data_dir: Path,
    run: Path,
    *,
    split: str,
    out: Path | None = None,
    collection: str | None = None,
    progress: Progress | None = None,
) -> tuple[Path, int]:
    """Score every config of a split with a run's models.

    Args:
        run: folder of one trained model, or of a whole run.
        out: parquet file; RUN/scores-SPLIT.parquet if None.
        collection: which to score; None takes the model's own.

    Returns:
        The file, and how many graphs it holds.

    Raises:
        PipelineError: no such split, a damaged file, or models of another kind.
    """
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    wanted = collection_named(collection) if collection else None
    ensemble = load_ensemble(run, wanted)
    target = wanted or ensemble.collection
    if target.kind != ensemble.collection.kind:
        raise PipelineError(f"{run}: ranks {ensemble.collection.kind} configs, not {target.name}")
    files = stored_graphs(data_dir, collections=(target,), splits=(split,), progress=progress)
    path = out or scores_file(run, split)
    write_scores(path, ensemble.predict(files, progress=progress))
    return path, len(files)


def scores_file(run: Path, split: str) -> Path:
    """Return where `predict` leaves a run's scores of a split."""
    return run / f"scores-{split}.parquet"


def given_scores(run: Path, split: str) -> pl.DataFrame:
    """Read the scores of a split that `predict` left in a run folder, or a score file itself.

    Raises:
        PipelineError: there is none, or it is damaged.
    """
    if not run.exists():
        raise PipelineError(
            f"{run}: no such folder or file; expected a run folder after `predict`, or its scores"
        )
    path = scores_file(run, split) if run.is_dir() else run
    if not path.exists():
        command = f"predict --run {run} --split {split}"
        raise PipelineError(f"{path}: no such file; run `{command}` first")
    return read_scores(path)


def blend_files(
    runs: Sequence[Path],
    out: Path,
    *,
    split: str,
    method: str,
    submission: Path | None,
    collection: str | None,
    tiles: Path | None = None,
) -> None:
    """Blend score files of one collection, each member weighing the same.

    Args:
        runs: score files, or run folders that `predict` left theirs in.
        split: whose scores to take from run folders.
        submission: also write the rankings there; needs `collection`.
        tiles: as `spread_over`.

    Raises:
        UsageError: no such method, or a submission without its collection.
        PipelineError: files that cannot be read, or of different data.
    """
    if method not in METHODS:
        raise UsageError(f"--method {method}: expected one of {', '.join(METHODS)}, best")
    if submission and not collection:
        raise UsageError("--submission: pass --collection as well; rows are named by it")
    named = collection_named(collection) if collection else None
    members = {str(run): given_scores(run, split) for run in runs}
    mixed = blend(members, method=method, weights=member_weights(list(members), {}))
    mixed = spread_over(mixed, tiles)
    write_scores(out, mixed)
    if submission and named:
        write_submission(submission, submission_rows([(named, mixed)]))


def spread_over(scores: pl.DataFrame, tiles: Path | None) -> pl.DataFrame:
    """Spread the picks of kernels by their tiles in a data folder; None leaves the scores alone.

    Raises:
        PipelineError: the folder lacks a kernel or its configs.
    """
    if tiles is None:
        return scores
    return spread_table(scores, find_graphs(tiles, collections=(TILE,)), USUAL_SPREAD)
