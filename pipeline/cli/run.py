"""The commands that train and rank a whole dataset: run, and its stages train, predict, blend."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import LOADING, command, data_dir, print_json, say
from pipeline.cli.submission import print_scores


@command
def run(
    data: options.Data = None,
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/first"),
    recipe: options.Recipe = "cpu",
    overrides: options.Overrides = None,
    resume: options.Resume = False,
    collections: options.Collections = None,
    limit_graphs: Annotated[
        int | None, typer.Option(min=1, help="So many graphs of each split, for a quick try.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option(help="Leave damaged files out, and name them.")] = False,
    store: options.Store = None,
    models: Annotated[
        Path | None, typer.Option(help="Holds run folders of trained models: none is trained then.")
    ] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    log_to: options.LogTo = None,
    max_minutes: options.MaxMinutes = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Run a whole recipe, from the audit to submission and report.

    Example: python -m pipeline run --data DIR --recipe cpu --out runs/mine
    """
    from data.tree import collections_named
    from models.config.recipe import load_recipe
    from pipeline.run.trackers import known_trackers

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    named, trackers = collections_named(collections), known_trackers(log_to)
    say(LOADING)
    from pipeline.jobs.workers import Workers
    from pipeline.run.run import Inputs
    from pipeline.run.run import run as run_recipe

    inputs = Inputs(data_dir(data), named, limit_graphs, store, skip_bad)
    who = Workers(workers, ray)
    report = run_recipe(
        inputs, out, chosen, resume=resume, models=models, workers=who, trackers=trackers
    )
    if json:
        print_json(report)
        return
    from pipeline.run.jobs import SUBMISSION
    from pipeline.run.report import REPORT_PAGE

    print_scores(report)
    submission = out / SUBMISSION["test"]
    is_there = submission.exists()
    typer.echo(f"submission  {submission if is_there else 'none: the data has no test split'}")
    typer.echo(f"report      {out / REPORT_PAGE}")


@command
def train(
    collection: Annotated[str, typer.Option(help="Such as layout:xla:default.")],
    out: Annotated[Path, typer.Option(help="Folder for the trained models.")],
    data: options.Data = None,
    recipe: options.Recipe = "cpu",
    model: Annotated[str | None, typer.Option(help="Only this model of the recipe.")] = None,
    overrides: options.Overrides = None,
    resume: options.Resume = False,
    resume_from: Annotated[
        Path | None, typer.Option(help="Folder of what an earlier training left, to go on from.")
    ] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
    log_to: options.LogTo = None,
    max_minutes: options.MaxMinutes = None,
    seed: options.Seed = None,
) -> None:
    """Train a recipe's models on one collection.

    They learn from its train split, each in a run folder of its own; with the recipe's
    layout.together, from those of all layout collections. OUT has a DONE mark once all are trained.

    Example: python -m pipeline train --recipe cpu --collection tile:xla --out runs/tile
    """
    from data.tree import collection_named
    from models.config.recipe import load_recipe
    from models.run_folder import DONE, mark_done
    from pipeline.run.trackers import known_trackers

    wanted = collection_named(collection)
    chosen = load_recipe(recipe, overrides or [], seed=seed)
    trackers = known_trackers(log_to)
    (out / DONE).unlink(missing_ok=True)
    say(LOADING)
    from ensembles.trained_models import continue_earlier
    from pipeline.jobs.workers import Workers
    from pipeline.run.single_stages import train_collection

    if resume_from:
        for folder in continue_earlier(resume_from, chosen.learned_as(wanted), out):
            say(f"goes on with an earlier training: {folder}")
    folders = train_collection(
        data_dir(data),
        wanted,
        chosen,
        out,
        model=model,
        resume=resume or resume_from is not None,
        workers=Workers(workers, ray),
        trackers=trackers,
    )
    for folder in folders:
        typer.echo(f"model       {folder}")
    if model is None:
        mark_done(out)


@command
def predict(
    run: Annotated[Path, typer.Option(help="Folder of one trained model, or of a whole run.")],
    out: Annotated[Path | None, typer.Option(help="Default: RUN/scores-SPLIT.parquet.")] = None,
    data: options.Data = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    collection: Annotated[str | None, typer.Option(help="Default: the model's own.")] = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
) -> None:
    """Score every config of a split with trained models.

    Example: python -m pipeline predict --run runs/tile/late_fusion_sage-seed0 --split valid
    """
    say(LOADING)
    from pipeline.jobs.workers import Workers
    from pipeline.run.single_stages import predict_split

    who = Workers(workers, ray)
    path, n_graphs = predict_split(
        data_dir(data), run, split=split, out=out, collection=collection, workers=who
    )
    typer.echo(f"scores      {path} ({n_graphs} graphs)")


@command
def blend(
    runs: Annotated[list[Path], typer.Option(help="Run folders after `predict`, or score files.")],
    out: Annotated[Path, typer.Option(help="Parquet file for the blended scores.")],
    more_runs: Annotated[list[Path] | None, typer.Argument(help="More of these.")] = None,
    split: Annotated[str, typer.Option(help="Whose scores to take from folders.")] = "test",
    method: Annotated[str, typer.Option(help="minmax-mean or rank-mean.")] = "minmax-mean",
    submission: Annotated[Path | None, typer.Option(help="Also write a submission.")] = None,
    collection: Annotated[str | None, typer.Option(help="Of the scores; for a submission.")] = None,
) -> None:
    """Blend the scores of several models of one collection.

    Scores are joined by what configs hold, so that differently ordered copies can be blended.

    Example: python -m pipeline blend --runs runs/a runs/b --split valid --out blend.parquet
    """
    say(LOADING)
    from common.checksums import write_table
    from data.tree import collection_named
    from ensembles.blend import SCALES, member_weights
    from ensembles.blend import blend as blend_scores
    from models.predict import read_scores
    from submissions.write import submission_rows, write_submission

    every = [*runs, *(more_runs or [])]
    if len(set(every)) < len(every):
        raise UsageError("--runs: the same run is given twice; expected each once")
    if method not in SCALES:
        raise UsageError(f"--method {method}: expected one of {', '.join(SCALES)}")
    if submission and not collection:
        raise UsageError("--submission: pass --collection as well; rows are named by it")
    paths = {run: run / f"scores-{split}.parquet" if run.is_dir() else run for run in every}
    if lacking := [path for path in paths.values() if not path.exists()]:
        command = f"predict --run RUN --split {split}"
        raise PipelineError(f"{lacking[0]}: no such file; expected what `{command}` writes")
    members = {str(run): read_scores(path) for run, path in paths.items()}
    blended = blend_scores(members, method=method, weights=member_weights(list(members), {}))
    write_table(out, blended)
    typer.echo(f"scores      {out}")
    if submission and collection:
        write_submission(submission, submission_rows([(collection_named(collection), blended)]))
        typer.echo(f"submission  {submission}")
