"""The commands that train and rank: run, train, predict."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from common.files import check_writable
from pipeline.cli import options
from pipeline.cli.console import LOADING, command, data_dir, print_json, read_recipe, say, show
from pipeline.cli.submission import print_scores


@command
def run(
    data: options.Data = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/first"),
    recipe: options.Recipe = "cpu",
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    resume: options.Resume = False,
    collections: options.Collections = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Skip damaged files, and list them in the report.")
    ] = False,
    store: options.Store = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder with trained models. The run then trains none.")
    ] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    log_to: options.LogTo = None,
    max_minutes: options.MaxMinutes = None,
    json: options.Json = False,
    seed: options.FirstSeed = None,
) -> None:
    """Run a recipe: check the data, train, rank, blend and report.

    The run folder then contains submission.csv, report.json and report.html. The command resumes a
    stopped run with --resume.

    Example: fast-or-slow run --data DIR --recipe cpu --out runs/mine
    """
    from data.tree import collections_named
    from models.run_folder import missing_run
    from pipeline.run.trackers import known_trackers

    places, trackers = collections_named(collections), known_trackers(log_to)
    settings = read_recipe(recipe, overrides, seed, places, trust=trust)
    if models and not models.is_dir():
        raise missing_run(models, "a folder with run folders")
    folder = data_dir(data)
    say(LOADING)
    from common.jobs.workers import Workers
    from pipeline.run.run import Inputs
    from pipeline.run.run import run as run_recipe

    report = run_recipe(
        Inputs(folder, places, store, skip_bad),
        out,
        settings,
        resume=resume,
        models=models,
        workers=Workers(workers, ray),
        trackers=trackers,
    )
    if json:
        print_json(report.as_json())
        return
    from pipeline.run.report import REPORT_PAGE
    from pipeline.run.state import SUBMISSION

    print_scores(report)
    submission = out / SUBMISSION["test"]
    is_whole = not collections and not any(part.endswith("/test") for part in report.missing_parts)
    note = "" if is_whole else ", without rows of the other collections"
    where = f"{submission}{note}" if submission.exists() else "none: the data has no test split"
    show(f"submission  {where}")
    show(f"report      {out / REPORT_PAGE}")


@command
def train(
    collection: Annotated[
        str, typer.Option(help="Collection to train on, for example layout:xla:default.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the trained models.")],
    data: options.Data = None,
    recipe: options.Recipe = "cpu",
    model: Annotated[str | None, typer.Option(help="Train only this model of the recipe.")] = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    resume: options.Resume = False,
    resume_from: Annotated[
        Path | None, typer.Option(help="Folder of an earlier training to continue.")
    ] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    log_to: options.LogTo = None,
    max_minutes: options.MaxMinutes = None,
    seed: options.FirstSeed = None,
) -> None:
    """Train the models of a recipe on one collection.

    Each model has its own folder in OUT. If the recipe has layout.together = true, the models learn
    from all layout collections.

    Example: fast-or-slow train --recipe cpu --collection tile:xla --out runs/tile
    """
    from data.tree import collection_named
    from models.run_folder import DONE, mark_done, missing_run
    from pipeline.run.trackers import known_trackers

    place = collection_named(collection)
    settings = read_recipe(recipe, overrides, seed, trust=trust)
    trackers, folder = known_trackers(log_to), data_dir(data)
    if resume_from and not resume_from.is_dir():
        raise missing_run(resume_from, "a folder of `train`")
    (out / DONE).unlink(missing_ok=True)
    say(LOADING)
    from common.jobs.workers import Workers
    from ensembles.trained_models import continue_earlier
    from pipeline.run.stages import train_collection

    if resume_from:
        for copied in continue_earlier(resume_from, settings.learned_as(place), out):
            say(f"continues an earlier training: {copied}")
    folders = train_collection(
        folder,
        place,
        settings,
        out,
        model=model,
        resume=resume or resume_from is not None,
        earlier=resume_from,
        workers=Workers(workers, ray),
        trackers=trackers,
    )
    for trained in folders:
        show(f"model       {trained}")
    if model is None:
        mark_done(out)


@command
def predict(
    run: Annotated[Path, typer.Option(help="Folder of a run or of a trained model.")],
    out: Annotated[
        Path | None, typer.Option(help="Score file. Default: RUN/scores-SPLIT.parquet.")
    ] = None,
    data: options.Data = None,
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Split to score.")
    ] = "test",
    collection: Annotated[
        str | None, typer.Option(help="Collection to score. Default: the collection of the model.")
    ] = None,
    trust: options.Trust = None,
    workers: options.Workers = None,
) -> None:
    """Compute the scores of all configs of a split.

    Example: fast-or-slow predict --run runs/tile/late_fusion_sage-seed0 --split valid
    """
    from data.tree import collection_named
    from models.run_folder import models_of, read_config

    place = collection_named(collection) if collection else None
    read_config(run)
    folder = data_dir(data)
    path = out or run / f"scores-{split}.parquet"
    say(LOADING)
    from common.jobs.workers import Workers
    from common.machine import thread_limits
    from data.graph_store.prepare import stored_graphs
    from ensembles.ensemble import load_ranker, ranked_by
    from ensembles.scores import scores_by_graph
    from models.predict import sampled
    from models.training.device import log_device

    trained_on = ranked_by(run, place)  # refuses a run without models of that kind
    target = place or trained_on
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    recipe, _ = models_of(run, target.kind, trust or ())
    files = stored_graphs(folder, collections=(target,), splits=(split,), workers=Workers(workers))
    log_device(recipe)
    load = partial(load_ranker, run, collection=collection, trust=trust or ())
    subsets = sampled(files, recipe.valid_configs if split == "valid" else 0)
    stage = f"predict {target.name}/{split}"
    with TemporaryDirectory(dir=path.parent) as temporary, thread_limits(recipe.n_threads):
        scores = Path(temporary) / path.name
        scores_by_graph({scores: load}, files, what=stage, subsets=subsets)
        scores.replace(path)
    show(f"scores      {path} ({len(files)} graphs)")
