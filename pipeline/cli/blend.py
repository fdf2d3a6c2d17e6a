"""The command that blends the scores of several models: blend."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import LOADING, check_output, command, data_dir, say, show

if TYPE_CHECKING:
    import polars as pl

    from data.tree import Collection


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
    from data.tree import find_graphs
    from ensembles.blend import BlendSpec, apply_blend
    from models.predict import write_scores
    from submissions.check import submission_rows, write_submission

    sources = [*runs, *(more_runs or [])]
    _check_options(sources, split, method)
    check_output("--out", out, ".parquet")
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


def _check_options(runs: Sequence[Path], split: str, method: str) -> None:
    from data.tree import SPLITS
    from ensembles.blend import SCALES

    if len(set(runs)) < len(runs):
        raise UsageError("--runs: the same run is given twice; expected each once")
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    if method not in SCALES:
        raise UsageError(f"--method {method}: expected one of {', '.join(SCALES)}")


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
    if not run.exists():
        raise PipelineError(f"{run}: no such file or folder; expected a run, or its scores")
    path = run / f"scores-{split}.parquet" if run.is_dir() else run
    if not path.exists():
        command = f"predict --run RUN --split {split}"
        raise PipelineError(f"{path}: no such file; expected what `{command}` writes")
    return path
