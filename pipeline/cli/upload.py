"""The commands `submission upload` and `submission list`, which talk to Kaggle."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli.console import (
    Debug,
    Json,
    Seed,
    command,
    print_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from submissions.upload.ledger import Entry

LONGEST_MESSAGE = 400  # characters; the marker after it must not be cut off

Ledger = Annotated[
    Path | None, typer.Option(help="Notes what was sent. Default: runs/submissions.jsonl.")
]

CheckedData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder that holds npz/, to check against. Default: PIPELINE_DATA, Kaggle's mount, "
        "what `fetch` wrote; never the sample.",
    ),
]


@command
def upload(
    file: Annotated[Path, typer.Argument(help="The submission.")],
    message: Annotated[str, typer.Option("-m", "--message", help="Shown beside the score.")],
    data: CheckedData = None,
    wait: Annotated[bool, typer.Option(help="Wait until Kaggle has scored it.")] = True,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the score at most.")
    ] = 900,
    force: Annotated[bool, typer.Option("--force", help="Send the same file once more.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="Run folder that made it. Default: the file's folder, or run/ in it."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe to note, where no run folder tells.")
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Check a submission, send it once, and wait for its score.

    Example: python -m pipeline submission upload submission.csv -m "cpu recipe" --data DIR
    """
    from common.settings import SUBMISSION_LEDGER
    from submissions.upload.provenance import made_by
    from submissions.upload.send import POLICY, Sending, send_once
    from submissions.upload.wait import PAUSES, wait_for_score

    ledger = ledger or SUBMISSION_LEDGER
    if len(message) > LONGEST_MESSAGE:
        raise UsageError(
            f"--message has {len(message)} characters; expected at most {LONGEST_MESSAGE}"
        )
    origin = made_by(run or file.parent, required=run is not None)
    _refuse_bad(file, data)
    job = Sending(
        path=file,
        message=message,
        ledger=ledger,
        recipe=recipe or origin.recipe,
        revision=origin.revision,
        force=force,
        policy=POLICY,
        say=say,
        show_progress=sys.stderr.isatty(),
    )
    entry = send_once(job)
    if not json:
        number = f" as submission {entry.ref}" if entry.ref else ""
        typer.echo(f"uploaded    {file} ({entry.size_bytes} bytes) to {entry.competition}{number}")
    if wait:
        with progress_bar() as progress:
            entry = wait_for_score(
                entry, timeout_s=timeout_s, ledger=ledger, pauses=PAUSES, progress=progress
            )
    _print_score(file, entry, ledger, waited=wait, json=json)


@command
def list_sent(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    ledger: Ledger = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """List what has been submitted, with scores.

    Scores are noted in the ledger where it has none yet.

    Example: python -m pipeline submission list
    """
    from common.settings import SUBMISSION_LEDGER
    from submissions.upload import send
    from submissions.upload.client import COMPETITION, list_submissions
    from submissions.upload.listed import update_open
    from submissions.upload.try_again import read_patiently

    listed = read_patiently(
        lambda: list_submissions(limit=limit),
        what="list submissions",
        policy=send.POLICY,
        say=say,
    )
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
        for row in listed
    ]
    names = ("ref", "submitted_at", "status", "public_score", "private_score", "message", "error")
    if json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows, if_known=("error",))
    try:
        update_open(ledger or SUBMISSION_LEDGER, listed, COMPETITION)
    except PipelineError as error:  # the list itself is good
        say(f"not noted: {error}")


def _refuse_bad(file: Path, data: Path | None) -> None:
    """Raise PipelineError with the first problem of the submission, and how many more there are.

    `--force` is no way around it: it sends a good file again.
    """
    from submissions.upload.check import problems_before_upload

    problems = problems_before_upload(file, data)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise PipelineError(f"{problems[0]}{more}; nothing was sent")


def _print_score(file: Path, entry: "Entry", ledger: Path, *, waited: bool, json: bool) -> None:
    from submissions.upload.ledger import COMPLETE

    if json:
        facts = ("ref", "size_bytes", "status", "public_score", "private_score")
        print_json(
            {
                "file": str(file),
                **{name: getattr(entry, name) for name in facts},
                "ledger": str(ledger),
            }
        )
    elif entry.status == COMPLETE:
        for name, score in (("public", entry.public_score), ("private", entry.private_score)):
            typer.echo(f"{name:<12}{'-' if score is None else score}")
    if waited and entry.status != COMPLETE:
        say(f"{file}: sent, not scored yet; `submission list` tells")
