"""The `submission` commands: check, upload, list."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import (
    command,
    data_dir,
    print_json,
    print_result,
    print_rows,
    say,
    tell_errors,
)

LONGEST_MESSAGE = 400  # characters; the tag after it must not be cut off

app = typer.Typer(help="Check, upload and list submissions.", no_args_is_help=True)

SubmissionFile = Annotated[Path, typer.Argument(help="The submission.")]


@app.command()
@command
def check(
    file: SubmissionFile,
    data: options.Data = None,
    split: Annotated[str, typer.Option(help="Which split the file answers.")] = "test",
    json: options.Json = False,
) -> None:
    """Check that a submission answers every graph, and nothing else.

    Where DIR holds a part of the competition's test graphs, one that answers them all is good too.

    Example: python -m pipeline submission check runs/first/submission.csv --data DIR
    """
    from submissions.check import check_submission, expected_rows, official_rows
    from submissions.labels import check_split
    from submissions.write import scan_submission

    folder = data_dir(data)
    expected, official = expected_rows(folder, split), official_rows()
    n_rows = len(expected)
    if problems := [str(problem) for problem in check_submission(file, expected)]:
        check_split(file, {row.id for row in scan_submission(file)}, expected, folder, split=split)
    in_part = problems and official.keys() >= expected.keys()
    if in_part and not check_submission(file, {**official, **expected}):
        problems, n_rows = [], len(official)
    facts = {"file": file, "rows": n_rows, "problems": problems}
    lines = [] if problems else [f"accepted    {file} ({n_rows} rows)"]
    print_result(facts, *lines, as_json=json)
    tell_errors(problems)


@app.command()
@command
def upload(
    file: SubmissionFile,
    message: Annotated[str, typer.Option("-m", "--message", help="Shown beside the score.")],
    data: Annotated[
        Path | None, typer.Option(help="Holds npz/. Default: as elsewhere, but never the sample.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until Kaggle has scored it.")] = True,
    max_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes until the score is no longer waited for.")
    ] = 15,
    force: Annotated[bool, typer.Option("--force", help="Send the same file once more.")] = False,
    json: options.Json = False,
) -> None:
    """Check a submission, send it once, and wait for its score.

    A tag of its content stands behind the message.

    Example: python -m pipeline submission upload submission.csv -m "cpu recipe" --data DIR
    """
    from submissions.upload.check import problems_before_upload
    from submissions.upload.send import COMPETITION, COMPLETE, submit, wait_for_score

    if len(message) > LONGEST_MESSAGE:
        raise UsageError(
            f"--message has {len(message)} characters; expected at most {LONGEST_MESSAGE}"
        )
    problems = problems_before_upload(file, data)
    if problems:  # --force is no way around it: it sends a good file again
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise PipelineError(f"{problems[0]}{more}; nothing was sent")
    sent = submit(file, message, force=force)
    if not json:
        where = f"to {COMPETITION} as submission {sent.ref}"
        typer.echo(f"uploaded    {file} ({sent.size_bytes} bytes) {where}")
    sent = wait_for_score(sent) if wait else sent
    if json:
        facts = ("ref", "size_bytes", "status", "public_score", "private_score")
        print_json({"file": file, **{name: getattr(sent, name) for name in facts}})
    elif sent.status == COMPLETE:
        for name, score in (("public", sent.public_score), ("private", sent.private_score)):
            typer.echo(f"{name:<12}{'-' if score is None else score}")
    if wait and sent.status != COMPLETE:
        say(f"{file}: sent, not scored yet; `submission list` tells")


@app.command("list")
@command
def list_sent(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    json: options.Json = False,
) -> None:
    """List what has been submitted, with scores.

    Example: python -m pipeline submission list
    """
    from submissions.upload.send import list_submissions

    names = ("ref", "submitted_at", "status", "public_score", "private_score", "message", "error")
    rows = []
    for row in list_submissions(limit):
        at = row.submitted_at and row.submitted_at.isoformat(sep=" ", timespec="minutes")
        scores = (row.public_score, row.private_score)
        rows.append((row.ref, at, row.status, *scores, row.description, row.error or None))
    print_rows(names, rows, if_known=("error",), as_json=json)
