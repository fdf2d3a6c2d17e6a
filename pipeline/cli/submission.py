"""The `submission` commands; those that talk to Kaggle, and `score`, have files of their own."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import (
    DataDir,
    Debug,
    Json,
    Seed,
    command,
    data_dir,
    print_json,
    say,
)
from pipeline.cli.upload import list_sent, upload

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
    """Check that a submission answers every graph, and nothing else.

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


app.command()(upload)
app.command("list")(list_sent)
