"""The command that blends the scores of several models: blend."""

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import LOADING, check_output, command, data_dir, say, show

if TYPE_CHECKING:
    import polars as pl

    from data.tree import Collection


@command
def blend(
    out: Annotated[
        Path,
        typer.Option(help="File for the result: .parquet of --runs, or .csv of --submissions."),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Run folders, model folders with scores of `predict`, or score files."),
    ] = None,
    submissions: Annotated[
        list[Path] | None, typer.Option(help="Finished submissions of the same graphs.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Positive weights of the submissions, such as 2,1.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="More runs or submissions.")] = None,
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Split of the scores.")
    ] = "test",
    method: Annotated[
        Literal["minmax-mean", "rank-mean"], typer.Option(help="Scale of the scores of runs.")
    ] = "minmax-mean",
    submission: Annotated[
        Path | None, typer.Option(help="Also write a submission to this file.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Collection of the scores. Required for run folders.")
    ] = None,
    data: options.Data = None,
) -> None:
    """Blend the scores of several models of one collection, or finished submissions.

    Scores are joined by the content of the configs, so the order of configs may differ. For a tile
    submission, the command also reads the kernels in the data folder.

    --submissions averages the ranks of each config by --weights, and reads no data.

    Example: fast-or-slow blend --runs runs/a runs/b --collection tile:xla --out blend.parquet

    Example: fast-or-slow blend --submissions a.csv b.csv --weights 2,1 --out mean.csv
    """
    from models.run_folder import missing_run

    sources = [*(runs or submissions or ()), *(more or ())]
    if bool(runs) == bool(submissions):
        raise UsageError("blend: expected one of --runs and --submissions")
    if len({path.resolve() for path in (*sources, out)}) <= len(sources):
        raise UsageError("blend: a run or file is given twice; expected each once")
    check_output("--out", out, ".csv" if submissions else ".parquet")
    if submissions:
        if collection or submission or data or (split, method) != ("test", "minmax-mean"):
            text = "takes --out and --weights only; leave the other options out"
            raise UsageError(f"--submissions: {text}")
        _blend_submissions(sources, _weights(weights, len(sources)), out)
        return
    if weights:
        raise UsageError("--weights: is for --submissions; leave it out")
    for run in sources:
        if not run.exists():
            raise missing_run(run, "a run, or its scores")
    say(LOADING)
    from data.tree import find_graphs
    from ensembles.blend import BlendSpec, apply_blend
    from models.predict import write_scores
    from submissions.check import submission_rows, write_submission

    check_output("--submission", submission)
    members, place = _read_members(sources, split, collection)
    if submission and not place:
        raise UsageError("--submission: pass --collection as well; rows are named by it")
    scores = apply_blend(members, BlendSpec(method, dict.fromkeys(members, 1.0)))
    write_scores(out, scores, place.name if place else "")
    show(f"scores      {out}")
    if submission and place:
        files = []
        if place.kind == "tile":
            files = find_graphs(data_dir(data), collections=(place,), splits=(split,))
        write_submission(submission, submission_rows([(place, scores)], files))
        show(f"submission  {submission}")


def _weights(text: str | None, n_files: int) -> list[float]:
    """Return a positive weight for each submission."""
    if n_files < 2:
        raise UsageError("--submissions: expected two or more files")
    values = []
    with suppress(ValueError):
        values = [float(word) for word in text.split(",")] if text else [1.0] * n_files
    if len(values) != n_files or not all(0 < value < inf for value in values):
        raise UsageError(f"--weights {text}: expected {n_files} positive numbers with commas")
    return values


def _blend_submissions(files: Sequence[Path], weights: Sequence[float], out: Path) -> None:
    from submissions.blend import blend_submissions
    from submissions.check import read_submission, write_submission

    members = {path: read_submission(path) for path in files}
    rows = [*blend_submissions(members, weights)]
    if not rows:
        raise PipelineError(f"{files[0]}: has no rows; expected a submission")
    write_submission(out, rows)
    show(f"submission  {out} ({len(rows)} rows)")


def _read_members(
    runs: Sequence[Path], split: str, collection: str | None
) -> "tuple[dict[str, pl.DataFrame], Collection | None]":
    """Return the scores of each run, and their collection. None if no file names it."""
    from data.tree import collection_named
    from ensembles.ensemble import scores_of_run
    from models.predict import collection_of_scores, read_scores

    place = collection_named(collection) if collection else None
    run_folders = [run for run in runs if _is_whole(run)]
    if run_folders and not place:
        raise UsageError(f"{run_folders[0]}: a whole run; pass --collection, such as tile:xla")
    paths = {run: _score_file(run, split) for run in runs if run not in run_folders}
    members = {
        str(run): scores_of_run(run, place, split)
        if place and run in run_folders
        else read_scores(paths[run])
        for run in runs
    }
    for path in paths.values():
        name = collection_of_scores(path)
        place = place or (collection_named(name) if name else None)
        if name and place and name != place.name:
            raise UsageError(f"{path}: holds scores of {name}; expected those of {place.name}")
    return members, place


def _is_whole(run: Path) -> bool:
    from models.run_folder import CONFIG, read_config

    return (run / CONFIG).exists() and "model" not in read_config(run)


def _score_file(run: Path, split: str) -> Path:
    """Return where the scores of a model's folder lie, or the file itself."""
    path = run / f"scores-{split}.parquet" if run.is_dir() else run
    if not path.exists():
        command = f"predict --run RUN --split {split}"
        raise PipelineError(f"{path}: no such file; expected what `{command}` writes")
    return path
