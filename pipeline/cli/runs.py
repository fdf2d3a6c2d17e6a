"""The commands that look at runs that were made: report, runs, compare."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import Json, command, print_json, print_result, print_table, say
from pipeline.cli.score import print_comparison


@command
def report(
    run: Annotated[Path, typer.Option(help="Folder of a run, or of one model; finished or not.")],
    json: Json = False,
) -> None:
    """Draw a run's report anew, report.html and report.png.

    Example: python -m pipeline report --run runs/first
    """
    from models.run_folder import REPORT_PICTURE
    from pipeline.run.folders import redraw_report

    page, drawn = redraw_report(run)
    picture, missing = page.with_name(REPORT_PICTURE), drawn["missing_stages"]
    facts = {"page": page, "picture": picture, "missing_stages": missing}
    print_result(facts, f"report      {page}", f"picture     {picture}", as_json=json)
    for line in missing if not json else ():
        say(line)


@command
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look for run folders.")] = Path("runs"),
    json: Json = False,
) -> None:
    """List run folders with recipe, seeds, revision and scores.

    Example: python -m pipeline runs runs
    """
    from data.tree import COLLECTIONS
    from pipeline.run.folders import list_runs

    rows = list_runs(folder)
    if json:
        print_json([asdict(row) for row in rows])
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row.values or {}))
        header = ("folder", "state", "recipe", "model", "seeds", "revision", "score", "mean of")
        lines = []
        for row in rows:
            facts = (row.recipe, row.model, " ".join(map(str, row.seeds)) or None)
            revision = row.revision[:12] if row.revision else None
            among = f"{len(row.values)} of {len(COLLECTIONS)}" if row.values else None
            values = [(row.values or {}).get(name) for name in names]
            lines.append((str(row.folder), row.state, *facts, revision, row.score, among, *values))
        print_table((*header, *names), lines)
    else:
        typer.echo(f"no runs     {folder}")
    for row in rows:
        if row.problem:
            say(f"error: {row.problem}")


@command
def compare(
    first: Annotated[Path, typer.Argument(help="A run folder, or its report.json.")],
    second: Annotated[Path, typer.Argument(help="The one to compare with it.")],
    json: Json = False,
) -> None:
    """Compare two runs graph by graph.

    Prints in which keys of their configs they differ, the difference of their scores, its interval,
    and the probability that the second run is better.

    Example: python -m pipeline compare runs/first runs/hops2
    """
    from pipeline.run.folders import differing_keys, read_report
    from submissions.compare import compare_reports

    reports = [read_report(run) for run in (first, second)]
    compared = compare_reports(*reports)
    keys = differing_keys(*reports)
    if json:
        print_json({"first": first, "second": second, "config": keys, **compared})
        return
    if keys:
        print_table(("key", "first", "second"), [(key, *map(_shown, keys[key])) for key in keys])
        typer.echo("")
    print_comparison(compared)


def _shown(value: object) -> object:
    return str(value) if isinstance(value, list | dict) else value
