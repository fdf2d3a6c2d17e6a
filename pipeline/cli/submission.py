"""The `submission` commands: check, upload, list."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import UsageError
from common.settings import default_data_dir
from pipeline.cli.console import (
    DataDir,
    Json,
    command,
    data_dir,
    print_json,
    print_result,
    print_rows,
    say,
    tell_errors,
)

if TYPE_CHECKING:
    from submissions.upload import Submission

LONGEST_MESSAGE = 400  # characters; the tag after it must not be cut off

app = typer.Typer(help="Check, upload and list submissions.", no_args_is_help=True)

SubmissionFile = Annotated[Path, typer.Argument(help="The submission.")]


@app.command()
@command
def check(
    file: SubmissionFile,
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="Which split the file answers.")] = "test",
    json: Json = False,
) -> None:
    """Check that a submission answers every graph, and nothing else.

    Where DIR holds a part of the competition's test graphs, one that answers them all is good too.

    Example: python -m pipeline submission check runs/first/submission.csv --data DIR
    """
    from submissions.check import problems_with_data

    problems, expected = problems_with_data(file, data_dir(data), split)
    facts = {"file": file, "rows": len(expected), "problems": problems}
    lines = [] if problems else [f"accepted    {file} ({len(expected)} rows)"]
    print_result(facts, *lines, as_json=json)
    tell_errors(problems)


@app.command()
@command
def upload(
    file: SubmissionFile,
    message: Annotated[str, typer.Option("-m", "--message", help="Shown beside the score.")],
    data: DataDir = None,
    wait: Annotated[bool, typer.Option(help="Wait until Kaggle has scored it.")] = True,
    max_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes until the score is no longer waited for.")
    ] = 15,
    force: Annotated[bool, typer.Option("--force", help="Send the same file once more.")] = False,
    json: Json = False,
) -> None:
    """Check a submission, send it once, and wait for its score.

    A tag of its content stands behind the message.

    Example: python -m pipeline submission upload submission.csv -m "cpu recipe" --data DIR
    """
    from submissions.check import problems_before_upload
    from submissions.upload import COMPETITION, submit, wait_for_score

    if len(message) > LONGEST_MESSAGE:
        raise UsageError(
            f"--message has {len(message)} characters; expected at most {LONGEST_MESSAGE}"
        )
    problems = problems_before_upload(file, data or default_data_dir())
    if problems:  # --force is no way around it: it sends a good file again
        tell_errors([*problems, f"{file}: nothing was sent"])
    sent = submit(file, message, force=force)
    size_bytes = sent.size_bytes
    if not json:
        typer.echo(
            f"uploaded    {file} ({size_bytes} bytes) to {COMPETITION} as submission {sent.ref}"
        )
    _print_score(file, wait_for_score(sent) if wait else sent, waited=wait, json=json)


@app.command("list")
@command
def list_sent(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    json: Json = False,
) -> None:
    """List what has been submitted, with scores.

    Example: python -m pipeline submission list
    """
    from submissions.upload import list_submissions

    rows = [
        (
            row.ref,
            row.submitted_at.isoformat(sep=" ", timespec="minutes") if row.submitted_at else None,
            row.status,
            row.public_score,
            row.private_score,
            row.description,
            row.error or None,
        )
        for row in list_submissions(limit)
    ]
    names = ("ref", "submitted_at", "status", "public_score", "private_score", "message", "error")
    print_rows(names, rows, if_known=("error",), as_json=json)


def _print_score(file: Path, sent: "Submission", *, waited: bool, json: bool) -> None:
    from submissions.upload import COMPLETE

    if json:
        facts = ("ref", "size_bytes", "status", "public_score", "private_score")
        print_json({"file": file, **{name: getattr(sent, name) for name in facts}})
    elif sent.status == COMPLETE:
        for name, score in (("public", sent.public_score), ("private", sent.private_score)):
            typer.echo(f"{name:<12}{'-' if score is None else score}")
    if waited and sent.status != COMPLETE:
        say(f"{file}: sent, not scored yet; `submission list` tells")
