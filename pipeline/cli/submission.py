"""The `submission` commands check, upload and list, `score`, and how scores are printed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import (
    command,
    data_dir,
    print_json,
    print_result,
    print_rows,
    print_table,
    say,
    show,
    tell_errors,
)

if TYPE_CHECKING:
    from submissions.run_report import RunReport

LONGEST_MESSAGE = 400  # characters; the tag after it must not be cut off

ABOUT = """Check, upload and list submissions.

Example: fast-or-slow submission check runs/first/submission.csv --data DIR
"""

app = typer.Typer(help=ABOUT, no_args_is_help=True)

SubmissionFile = Annotated[Path, typer.Argument(help="Submission file.")]


@app.command()
@command
def check(
    file: SubmissionFile,
    data: options.Data = None,
    split: Annotated[str, typer.Option(help="Split of the rankings.")] = "test",
    json: options.Json = False,
) -> None:
    """Check that a submission has one valid row for every graph.

    If the data folder has only some of the competition's test graphs, rows for these are enough.

    Example: fast-or-slow submission check runs/first/submission.csv --data DIR
    """
    from submissions.check import problems_with_data

    problems, counts = problems_with_data(file, data_dir(data), split)
    facts = {"file": file, "rows": len(counts), "problems": problems}
    lines = [] if problems else [f"accepted    {file} ({len(counts)} rows)"]
    print_result(facts, *lines, as_json=json)
    tell_errors(problems)


@app.command()
@command
def upload(
    file: SubmissionFile,
    message: Annotated[
        str, typer.Option("-m", "--message", help="Message that Kaggle shows next to the score.")
    ],
    data: options.Data = None,
    force: Annotated[bool, typer.Option("--force", help="Send the same file again.")] = False,
    json: options.Json = False,
) -> None:
    """Check a submission, and upload it to Kaggle.

    The message gets a tag with a digest of the file. A second upload of a file needs --force.

    Example: fast-or-slow submission upload submission.csv -m "cpu recipe" --data DIR
    """
    from common.settings import default_data_dir
    from submissions.check import problems_before_upload
    from submissions.upload import COMPETITION, submit

    if len(message) > LONGEST_MESSAGE:
        raise UsageError(
            f"--message has {len(message)} characters; expected at most {LONGEST_MESSAGE}"
        )
    problems = problems_before_upload(file, data or default_data_dir())
    if problems:  # --force is no way around it: it sends a good file again
        tell_errors([*problems, f"{file}: nothing was sent"])
    answer = submit(file, message, force=force)
    facts = {"file": file, "ref": answer.ref, "size_bytes": answer.size_bytes}
    where = f"to {COMPETITION} as submission {answer.ref}"
    line = f"uploaded    {file} ({answer.size_bytes} bytes) {where}"
    print_result(facts, line, as_json=json)
    say("the score takes some minutes; `submission list` shows it")


@app.command("list")
@command
def list_sent(
    limit: Annotated[int, typer.Option(min=1, help="Number of submissions, newest first.")] = 20,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of run folders that get their scores. Default: runs."),
    ] = None,
    json: options.Json = False,
) -> None:
    """List your submissions with their scores.

    The scores of a run's submission are stored in its run folder, and `runs` prints them.

    Example: fast-or-slow submission list
    """
    from pipeline.cli.reports import run_folders
    from pipeline.run.state import SUBMISSION
    from submissions.sent import store_sent
    from submissions.upload import list_submissions

    folders = list(run_folders(runs or Path("runs"))) if runs or Path("runs").is_dir() else []
    names = ("ref", "submitted_at", "status", "public_score", "private_score", "message", "error")
    rows, listed = [], list_submissions(limit)
    for row in listed:
        at = row.submitted_at and row.submitted_at.isoformat(sep=" ", timespec="minutes")
        scores = (row.public_score, row.private_score)
        rows.append((row.ref, at, row.status, *scores, row.description, row.error or None))
    print_rows(names, rows, if_known=("error",), as_json=json)
    if n_runs := sum(store_sent(folder / SUBMISSION["test"], listed) for folder in folders):
        say(f"note: `runs {runs or 'runs'}` shows the scores of {n_runs} of these")


@command
def score(
    submission: Annotated[Path, typer.Option(help="Submission file to score.")],
    data: options.Data = None,
    split: Annotated[
        Literal["train", "valid", "test"] | None,
        typer.Option(help="Split of the rankings. Default: valid."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Score the test split of the sample.")
    ] = False,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Also print the score of each graph.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Score a submission with the measured runtimes.

    --json has all metrics of all graphs.

    Example: fast-or-slow score --submission runs/first/submission-valid.csv --data DIR
    """
    from data.labels import read_labels
    from data.manifest import read_manifest
    from data.tree import find_graphs
    from submissions.check import read_submission, refuse_other_split
    from submissions.score import cut_to_samples, score_submission

    split = split or ("test" if private else "valid")
    if private and split != "test":
        raise UsageError(f"--private judges the test split; leave it or --split {split} out")
    rankings = read_submission(submission)
    folder = data_dir(data)
    labels = read_labels(folder, split, private=private)
    refuse_other_split(submission, rankings, labels, split)
    files = [] if split == "test" else find_graphs(folder, splits=(split,))
    inputs = cut_to_samples(files, rankings, labels)
    n_configs = {name: len(label.runtime_ns) for name, label in labels.items()}
    programs_of = read_manifest(folder)["graphs"] if private else {}
    programs = {name: facts["program"] for name, facts in programs_of.items() if "program" in facts}
    try:
        report = score_submission(*inputs, n_configs=n_configs, programs=programs)
    except PipelineError as error:
        line = str(error).removeprefix("submission: ")
        raise PipelineError(f"{submission}: {line}") from error
    if not any(label.is_labelled for label in labels.values()):
        raise PipelineError(f"{folder}: {split} has no runtimes; --private reads the sample's")
    if json:
        print_json(report.as_json())
        return
    print_scores(report)
    for item in report.left_out:
        say(f"left out: {item.graph}: {item.reason}")
    if graphs:
        show("")
        _print_graphs(report)


def _print_graphs(report: "RunReport") -> None:
    rows = [
        (f"{name}:{part.programs.get(graph, graph)}", part.metric, value)
        for name, part in report.collections.items()
        for graph, value in part.values().items()
    ]
    print_table(("graph", "metric", "value"), rows)


def print_scores(report: "RunReport") -> None:
    """Print a report's value by collection, then the mean; what they hide, on standard error."""
    rows, parts = [], report.collections
    for name in report.config.get("collections", parts):  # of a run, those it is of
        part = parts[name]
        low, high = part.ci95 or (None, None)
        facts = (part.n_graphs, part.baseline, part.noise_ceiling)
        rows.append((name, part.metric, part.value, low, high, *facts))
    n_judged = sum(row[2] is not None for row in rows)
    mean = "mean" if n_judged == len(parts) else f"mean of {n_judged} of {len(parts)}"
    rows.append((mean, "", report.score, None, None, sum(row[5] for row in rows), None, None))
    header = ("collection", "metric", "value", "ci95 low", "ci95 high", "graphs")
    print_table((*header, "baseline", "ceiling"), rows, if_known=("baseline", "ceiling"))
    from submissions.score import remarks_on

    for line in remarks_on(report):
        say(f"note: {line}")
