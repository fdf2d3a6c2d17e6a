"""The `submission` commands; `score` has a file of its own."""

from pathlib import Path
from typing import Annotated

import typer

from console import (
    DataDir,
    Debug,
    Json,
    Seed,
    command,
    data_dir,
    print_json,
    print_table,
    say,
)
from data.errors import PipelineError

app = typer.Typer(help="Check, upload and list submissions.", no_args_is_help=True)

SubmissionFile = Annotated[Path, typer.Argument(help="The submission.")]
Split = Annotated[str, typer.Option(help="Which split the file answers.")]


def _problems(file: Path, data: Path | None, split: str) -> tuple[list[str], int]:
    """Check a submission against the data; return the problems and the rows expected."""
    from submissions.check import check_submission, expected_rows

    expected = expected_rows(data_dir(data), split)
    return [str(problem) for problem in check_submission(file, expected)], len(expected)


@app.command()
@command
def check(
    file: SubmissionFile,
    data: DataDir = None,
    split: Split = "test",
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Check that a submission answers every graph of the data, and nothing else.

    Example: python -m pipeline submission check runs/first/submission.csv --data DIR
    """
    problems, n_rows = _problems(file, data, split)
    if json:
        print_json({"file": str(file), "rows": n_rows, "problems": problems})
    elif not problems:
        typer.echo(f"accepted    {file} ({n_rows} rows)")
    for problem in problems:
        say(f"error: {problem}")
    if problems:
        raise typer.Exit(1)


@app.command()
@command
def upload(
    file: SubmissionFile,
    message: Annotated[str, typer.Option("-m", "--message", help="Shown beside the score.")],
    data: DataDir = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Check a submission against the test files, then send it to Kaggle.

    Example: python -m pipeline submission upload submission.csv -m "cpu recipe" --data DIR
    """
    from submissions.upload import upload as send

    problems, _ = _problems(file, data, "test")
    if problems:
        more = f" (and {len(problems) - 1} more; `submission check` lists them)"
        raise PipelineError(problems[0] + (more if len(problems) > 1 else ""))
    result = send(file, message)
    if json:
        print_json({"file": str(file), "ref": result.ref, "size_bytes": result.size_bytes})
    else:
        typer.echo(f"uploaded    {file} ({result.size_bytes} bytes) to {result.competition}")


@app.command("list")
@command
def list_sent(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """List what has been submitted, with scores.

    Example: python -m pipeline submission list
    """
    from submissions.upload import list_submissions

    rows = [
        (
            row.submitted_at.isoformat(sep=" ", timespec="minutes") if row.submitted_at else None,
            row.status,
            row.public_score,
            row.private_score,
            row.description,
        )
        for row in list_submissions(limit=limit)
    ]
    header = ("submitted_at", "status", "public_score", "private_score", "message")
    if json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)
