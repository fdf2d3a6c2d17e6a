"""Commands of datasets and runs: run, train, predict, blend, tune, report, runs, compare."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from common.errors import PipelineError, UsageError, blame
from common.files import check_writable
from pipeline.cli import options
from pipeline.cli.console import (
    LOADING,
    check_output,
    command,
    data_dir,
    print_json,
    print_table,
    read_recipe,
    say,
    show,
    tell_errors,
)
from pipeline.cli.submission import print_scores

COMPARED = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)


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
    from pipeline.run.trackers import known_trackers

    named, trackers = collections_named(collections), known_trackers(log_to)
    chosen = read_recipe(recipe, overrides, seed, named, trust=trust)
    say(LOADING)
    from common.jobs.workers import Workers
    from pipeline.run.run import Inputs
    from pipeline.run.run import run as run_recipe

    inputs = Inputs(data_dir(data), named, store, skip_bad)
    who = Workers(workers, ray)
    report = run_recipe(
        inputs, out, chosen, resume=resume, models=models, workers=who, trackers=trackers
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
    from models.run_folder import DONE, mark_done
    from pipeline.run.trackers import known_trackers

    wanted = collection_named(collection)
    chosen = read_recipe(recipe, overrides, seed, trust=trust)
    trackers = known_trackers(log_to)
    (out / DONE).unlink(missing_ok=True)
    say(LOADING)
    from common.jobs.workers import Workers
    from ensembles.trained_models import continue_earlier
    from pipeline.run.stages import train_collection

    if resume_from:
        for folder in continue_earlier(resume_from, chosen.learned_as(wanted), out):
            say(f"continues an earlier training: {folder}")
    folders = train_collection(
        data_dir(data),
        wanted,
        chosen,
        out,
        model=model,
        resume=resume or resume_from is not None,
        earlier=resume_from,
        workers=Workers(workers, ray),
        trackers=trackers,
    )
    for folder in folders:
        show(f"model       {folder}")
    if model is None:
        mark_done(out)


@command
def predict(
    run: Annotated[Path, typer.Option(help="Folder of a run or of a trained model.")],
    out: Annotated[
        Path | None, typer.Option(help="Score file. Default: RUN/scores-SPLIT.parquet.")
    ] = None,
    data: options.Data = None,
    split: Annotated[str, typer.Option(help="Split to score: train, valid or test.")] = "test",
    collection: Annotated[
        str | None, typer.Option(help="Collection to score. Default: the collection of the model.")
    ] = None,
    trust: options.Trust = None,
    workers: options.Workers = None,
) -> None:
    """Compute the scores of all configs of a split.

    Example: fast-or-slow predict --run runs/tile/late_fusion_sage-seed0 --split valid
    """
    from data.tree import SPLITS, collection_named

    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    wanted = collection_named(collection) if collection else None
    path = out or run / f"scores-{split}.parquet"
    say(LOADING)
    from common.jobs.workers import Workers
    from common.machine import thread_limits
    from data.graph_store.prepare import stored_graphs
    from ensembles.ensemble import load_ranker, ranked_by
    from ensembles.scores import scores_by_graph
    from models.predict import sampled
    from models.run_folder import models_of
    from models.training.device import log_device

    learned = ranked_by(run, wanted)  # refuses a run without models of that kind
    target = wanted or learned
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    recipe, _ = models_of(run, target.kind, trust or ())
    folder, parts = data_dir(data), (split,)
    files = stored_graphs(folder, collections=(target,), splits=parts, workers=Workers(workers))
    log_device(recipe)
    load = partial(load_ranker, run, collection=collection, trust=trust or ())
    subsets = sampled(files, recipe.valid_configs if split == "valid" else 0)
    what = f"predict {target.name}/{split}"
    with TemporaryDirectory(dir=path.parent) as temporary, thread_limits(recipe.n_threads):
        scores = Path(temporary) / path.name
        scores_by_graph({scores: load}, files, what=what, subsets=subsets)
        scores.replace(path)
    show(f"scores      {path} ({len(files)} graphs)")


@command
def blend(
    runs: Annotated[
        list[Path],
        typer.Option(help="Run folders, model folders with scores of `predict`, or score files."),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file for the blended scores.")],
    more_runs: Annotated[list[Path] | None, typer.Argument(help="More runs, as in --runs.")] = None,
    split: Annotated[str, typer.Option(help="Split of the scores.")] = "test",
    method: Annotated[str, typer.Option(help="Method: minmax-mean or rank-mean.")] = "minmax-mean",
    submission: Annotated[
        Path | None, typer.Option(help="Also write a submission to this file.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Collection of the scores. Required for run folders.")
    ] = None,
    data: options.Data = None,
) -> None:
    """Blend the scores of several models of one collection.

    Scores are joined by the content of the configs, so the order of configs may differ. For a tile
    submission, the command also reads the kernels in the data folder.

    Example: fast-or-slow blend --runs runs/a runs/b --collection tile:xla --out blend.parquet
    """
    say(LOADING)
    from data.tree import SPLITS, collection_named, find_graphs
    from ensembles.blend import SCALES, BlendSpec, apply_blend
    from ensembles.ensemble import scores_of_run
    from models.predict import collection_of_scores, read_scores, write_scores
    from submissions.check import submission_rows, write_submission

    every = [*runs, *(more_runs or [])]
    if len(set(every)) < len(every):
        raise UsageError("--runs: the same run is given twice; expected each once")
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    if method not in SCALES:
        raise UsageError(f"--method {method}: expected one of {', '.join(SCALES)}")
    named = collection_named(collection) if collection else None
    whole = [run for run in every if _is_whole(run)]
    if whole and not named:
        raise UsageError(f"{whole[0]}: a whole run; pass --collection, such as tile:xla")
    paths = {run: _score_file(run, split) for run in every if run not in whole}
    check_output("--out", out, ".parquet")
    check_output("--submission", submission)
    members = {}
    for run in every:
        if named and run in whole:
            members[str(run)] = scores_of_run(run, named, split)
        else:
            members[str(run)] = read_scores(paths[run])
    for path in paths.values():
        told = collection_of_scores(path)
        named = named or (collection_named(told) if told else None)
        if told and named and told != named.name:
            raise UsageError(f"{path}: holds scores of {told}; expected those of {named.name}")
    if submission and not named:
        raise UsageError("--submission: pass --collection as well; rows are named by it")
    blended = apply_blend(members, BlendSpec(method, dict.fromkeys(members, 1.0)))
    write_scores(out, blended, named.name if named else "")
    show(f"scores      {out}")
    if submission and named:
        files = []
        if named.kind == "tile":
            files = find_graphs(data_dir(data), collections=(named,), splits=(split,))
        write_submission(submission, submission_rows([(named, blended)], files))
        show(f"submission  {submission}")


def _is_whole(run: Path) -> bool:
    from models.run_folder import CONFIG, read_config

    return (run / CONFIG).exists() and "model" not in read_config(run)


def _score_file(run: Path, split: str) -> Path:
    """Return where the scores of a model's folder lie, or the file itself."""
    if not run.exists():
        raise PipelineError(f"{run}: no such file or folder; expected a run, or its scores")
    path = run / f"scores-{split}.parquet" if run.is_dir() else run
    if not path.exists():
        command = f"predict --run RUN --split {split}"
        raise PipelineError(f"{path}: no such file; expected what `{command}` writes")
    return path


@command
def tune(
    out: Annotated[Path, typer.Option(help="Folder for the trials and best.toml.")],
    data: options.Data = None,
    recipe: options.Recipe = "cpu",
    space: Annotated[
        str, typer.Option(help="Search space: a name in configs/tune/, or a .toml file.")
    ] = "cpu",
    storage: Annotated[
        str | None, typer.Option(help="Journal file or database URL. Default: OUT/journal.log.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Total number of trials, including earlier calls.")
    ] = 20,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of parallel trials. Each has its own GPU.")
    ] = 1,
    ray: options.Ray = None,
    max_minutes: options.MaxMinutes = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    json: options.Json = False,
    seed: options.FirstSeed = None,
) -> None:
    """Search hyper-parameters with held-out train graphs.

    The same command resumes. Several machines can share a search through one database URL.

    Example: fast-or-slow tune --recipe cpu --trials 20 --workers 2 --out runs/tune
    """
    from common.jobs.workers import Workers
    from pipeline.tuning.objective import load_space
    from pipeline.tuning.tune import tune as search

    chosen = read_recipe(recipe, overrides, seed, trust=trust)
    held, who = storage or out / "journal.log", Workers(workers, ray)
    wanted = load_space(space, chosen)
    result = search(
        chosen, wanted, data_dir(data), storage=held, trials=trials, out=out, workers=who
    )
    if json:
        print_json(asdict(result))
        return
    best = "best" if result.best.is_baseline else f"best, trial {result.best.number}"
    print_table(("", "value"), [("baseline", result.baseline_value), (best, result.best.value)])
    show(f"recipe      {result.best_recipe}")
    if not result.best.is_baseline:
        say("note: the best of many trials is partly lucky: judge its recipe on the valid split")


@command
def report(
    run: Annotated[Path, typer.Option(help="Folder of a finished run.")],
) -> None:
    """Draw the report of a run again.

    It writes report.html, report.png and a page for each graph.

    Example: fast-or-slow report --run runs/first
    """
    from models.run_folder import REPORT, REPORT_PICTURE
    from pipeline.run.report import draw_report
    from submissions.run_report import read_report

    check_output("--run", run / REPORT_PICTURE if run.is_dir() else None)
    with blame(run / REPORT, "the report of a run"):
        page = draw_report(run, read_report(run))
    show(f"report      {page}", f"picture     {page.with_name(REPORT_PICTURE)}")


@command
def runs(
    folder: Annotated[
        Path, typer.Argument(help="Folder in which run folders are searched.")
    ] = Path("runs"),
    json: options.Json = False,
) -> None:
    """List the run folders and their scores.

    Example: fast-or-slow runs runs
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder}: no such folder; expected one that holds run folders")
    rows, errors = [], []
    for path in _run_folders(folder):
        try:
            rows.append(_run_row(path))
        except PipelineError as error:
            errors.append(str(error))
    if json:
        print_json(rows)
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row["values"]))
        lines = [
            (
                *(str(row["folder"]), row["state"], row["recipe"]),
                " ".join(map(str, row["seeds"])) or None,
                row["revision"] and row["revision"][:12],
                *(row["score"], *map(row["values"].get, names)),
            )
            for row in rows
        ]
        print_table(("folder", "state", "recipe", "seeds", "revision", "score", *names), lines)
    else:
        show(f"no runs     {folder}")
    tell_errors(errors)


def _run_folders(folder: Path) -> Iterator[Path]:
    from models.run_folder import CONFIG

    if (folder / CONFIG).is_file():
        yield folder
        return
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _run_folders(path)


def _run_row(folder: Path) -> dict[str, Any]:
    from models.run_folder import CONFIG, REPORT, is_done, read_config
    from submissions.run_report import read_report

    with blame(folder / CONFIG, "the config of a run"):
        config = read_config(folder)
        recipe = config.get("recipe", {})
        seeds = [config["seed"]] if "seed" in config else list(recipe.get("seeds", ()))
        name = recipe.get("name")
    report = read_report(folder) if "space" not in config and (folder / REPORT).exists() else None
    parts = report.collections if report else {}
    return {
        "folder": folder,
        "state": "done" if is_done(folder) else "unfinished",
        "recipe": name,
        "seeds": seeds,
        "revision": report and report.revision,
        "score": report and report.score,
        "values": {key: part.value for key, part in parts.items() if part.value is not None},
    }


@command
def compare(
    first: Annotated[
        Path, typer.Argument(help="Run folder, or a file with the output of `score --json`.")
    ],
    second: Annotated[Path, typer.Argument(help="Run folder or file to compare with the first.")],
    json: options.Json = False,
) -> None:
    """Compare two runs graph by graph.

    It prints the recipe keys that differ, the difference of the scores with its interval, and the
    probability that the second run is better.

    Example: fast-or-slow compare runs/first runs/hops2
    """
    from models.run_folder import flat
    from submissions.compare import compare_reports
    from submissions.run_report import read_report

    reports = [read_report(run) for run in (first, second)]
    with blame(f"{first} or {second}", "the reports of two runs"):
        compared = compare_reports(*reports)
        one, other = (dict(flat(report.config)) for report in reports)
        keys = {
            key: [one.get(key), other.get(key)]
            for key in sorted(one | other)
            if one.get(key) != other.get(key)
        }
        if json:
            print_json({"first": first, "second": second, "config": keys, **compared})
            return
        show(f"first = {first}, second = {second}")
        if keys:
            print_table(("key", "first", "second"), [(key, *keys[key]) for key in keys])
            show("")
        elif all(report.config for report in reports):
            show("no key of their configs differs")
        _print_comparison(compared)


def _print_comparison(compared: Mapping[str, Any]) -> None:
    from submissions.compare import comparison_notes, probability_texts

    rows, told = [], probability_texts(compared)
    for name, entry in {**compared["collections"], "mean": compared["mean"]}.items():
        shown = f"mean of {len(compared['collections'])}" if name == "mean" else name
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        probability = (told[name] or "-").rjust(len(COMPARED[-1]))
        rows.append((shown, *counts, *values, *interval, probability))
    print_table(COMPARED, rows)
    for note in comparison_notes(compared):
        say(f"note: {note}")
