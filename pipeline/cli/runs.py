"""The commands that look at runs that were made: report, runs, compare."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, print_json, print_table, say

COMPARED = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)


@command
def report(
    run: Annotated[Path, typer.Option(help="Folder of a finished run.")],
    graph: Annotated[
        str | None, typer.Option(help="Explain this graph's best config on its page, to send it.")
    ] = None,
    data: options.Data = None,
) -> None:
    """Draw a run's report anew: report.html, report.png, and a page per graph in graphs/.

    --graph NAME, or COLLECTION:NAME, has the models say which nodes set the config that they rank
    first apart, which takes seconds to minutes; --data is where the run's data are now.

    Example: python -m pipeline report --run runs/first
    """
    from models.run_folder import REPORT_PICTURE
    from pipeline.run.folders import explain_best, read_report
    from pipeline.run.report import draw_report
    from submissions.report.page import graph_address

    if graph is None and data is not None:
        raise UsageError("--data: of no use without --graph NAME")
    alone = None if graph is None else explain_best(run, graph, data)
    page = draw_report(run, read_report(run), alone=alone)
    typer.echo(f"report      {page}\npicture     {page.with_name(REPORT_PICTURE)}")
    if alone is not None:
        typer.echo(f"graph       {run / graph_address(*alone)}")


@command
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look for run folders.")] = Path("runs"),
    json: options.Json = False,
) -> None:
    """List run folders with recipe, seeds, revision, scores, models, and what --set changed.

    Example: python -m pipeline runs runs
    """
    from data.tree import COLLECTIONS
    from pipeline.run.folders import list_runs

    rows = list_runs(folder)
    if json:
        print_json(rows)
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row["values"] or {}))
        header = ("folder", "state", "recipe", "seeds", "revision", "score", "mean of", *names)
        lines: list[tuple[object, ...]] = []
        for row in rows:
            seeds = " ".join(map(str, row["seeds"])) or None
            revision = row["revision"] and row["revision"][:12]
            facts = (str(row["folder"]), row["state"], row["recipe"], seeds, revision, row["score"])
            values = row["values"] or {}
            among = f"{len(values)} of {len(COLLECTIONS)}" if values else None
            changed = (f"{key}={value}" for key, value in row["changed"].items())
            made_with = " ".join((*row["models"], *changed)) or None
            lines.append((*facts, among, *map(values.get, names), made_with))
        print_table((*header, "models, and what --set changed"), lines)
    else:
        typer.echo(f"no runs     {folder}")
    for row in rows:
        if row["problem"]:
            say(f"error: {row['problem']}")


@command
def compare(
    first: Annotated[Path, typer.Argument(help="A run's folder, or what `score --json` printed.")],
    second: Annotated[Path, typer.Argument(help="The one to compare with it.")],
    out: Annotated[
        Path | None, typer.Option(help="Write charts and all graphs here, as .html.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare two runs graph by graph.

    Prints in which keys of their configs they differ, the difference of their scores, its interval,
    and the probability that the second run is better.

    Example: python -m pipeline compare runs/first runs/hops2
    """
    if out is not None and out.suffix != ".html":
        raise UsageError(f"--out {out}: expected a name that ends in .html")
    from pipeline.run.folders import differing_keys, read_report
    from submissions.compare import compare_reports, paired_scores
    from submissions.report.page import write_comparison_page

    reports = [read_report(run) for run in (first, second)]
    compared = compare_reports(*reports)
    keys = differing_keys(*reports)
    if out is not None:
        pairs, names = paired_scores(*reports), [str(first), str(second)]
        write_comparison_page(out, names, compared, pairs, keys)
        say(f"page        {out}")
    if json:
        print_json({"first": first, "second": second, "config": keys, **compared})
        return
    if keys:
        print_table(("key", "first", "second"), [(key, *keys[key]) for key in keys])
        typer.echo("")
    _print_comparison(compared)


def _print_comparison(compared: Mapping[str, Any]) -> None:
    """Print what `compare_reports` found: a row per collection, and their mean."""
    rows = []
    mean = f"mean of {len(compared['collections'])}"
    for name, entry in {**compared["collections"], mean: compared["mean"]}.items():
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        chance = entry["probability"]  # a few families tell no more than from .01 to .99
        told = None if chance is None else min(max(chance, 0.01), 0.99)
        rows.append((name, *counts, *values, *interval, told))
    print_table(COMPARED, rows)
    say("note: over families of graphs alone; other seeds of a recipe may move a score as far")
    for name, entry in compared["collections"].items():
        if entry["only_in_one"]:
            say(f"{name}: {entry['only_in_one']} graphs that only one of the two has judged")
    alone = [name for name, entry in compared["collections"].items() if entry["ci95"] is None]
    if alone:
        say(f"no interval, nor one of the mean: graphs of one family alone in {', '.join(alone)}")
