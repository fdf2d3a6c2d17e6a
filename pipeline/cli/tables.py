"""Scores as the commands print them: of one submission, of several seeds, of two runs compared."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from pipeline.cli.console import print_json, print_table, say
from submissions.compare import Report, seed_spread
from submissions.score import remarks_on

STATISTICS = ("mean", "sd", "min", "max")
COMPARED = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)


def print_scores(report: Mapping[str, Any]) -> None:
    """Print a report's value by collection, then the mean; what they hide, on standard error."""
    rows = []
    for name, part in report["collections"].items():
        low, high = part["ci95"] or (None, None)
        facts = (part["n_graphs"], part.get("floor"), part.get("noise_ceiling"))
        rows.append((name, part["metric"], part["value"], low, high, *facts))
    rows.append(("mean", "", report["score"], None, None, sum(row[5] for row in rows), None, None))
    header = ("collection", "metric", "value", "ci95 low", "ci95 high", "graphs")
    print_table((*header, "floor", "ceiling"), rows, if_known=("floor", "ceiling"))
    for line in remarks_on(report):
        say(f"note: {line}")


def print_comparison(compared: Mapping[str, Any]) -> None:
    """Print what `compare_reports` found: a row per collection, and their mean."""
    rows = []
    for name, entry in {**compared["collections"], "mean": compared["mean"]}.items():
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        rows.append((name, *counts, *values, *interval, entry["probability"]))
    print_table(COMPARED, rows)
    for name, entry in compared["collections"].items():
        if entry["only_in_one"]:
            say(f"{name}: {entry['only_in_one']} graphs that only one of the two has judged")
    alone = [name for name, entry in compared["collections"].items() if entry["ci95"] is None]
    if alone:
        say(f"no interval, nor one of the mean: graphs of one family alone in {', '.join(alone)}")


def print_seeds(files: Sequence[Path], reports: Sequence[Report], *, json: bool) -> None:
    """Print mean, standard deviation and range over one recipe's submissions, by collection.

    Collections that some submissions answer and some do not are named on standard error.
    """
    spread = seed_spread(reports)
    for name in spread["answered_by_some"]:
        silent = [
            str(file)
            for file, report in zip(files, reports, strict=True)
            if report["collections"][name]["value"] is None
        ]
        say(f"{name}: no spread, nor one of the mean: not answered by {', '.join(silent)}")
    if json:
        submissions = [
            {
                "file": str(file),
                "score": report["score"],
                "collections": {n: part["value"] for n, part in report["collections"].items()},
            }
            for file, report in zip(files, reports, strict=True)
        ]
        print_json({"submissions": submissions, **spread, "reports": list(reports)})
        return
    for item in reports[0]["left_out"]:
        if all(item in report["left_out"] for report in reports):
            typer.echo(f"left out: {item['graph']}: {item['reason']}")
    header = ("collection", "metric", *STATISTICS, "graphs", "ceiling")
    rows = list(_seed_rows(reports, spread))
    print_table(header, rows, if_known=("ceiling",))


def _seed_rows(reports: Sequence[Report], spread: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    n_graphs = 0
    for name, summary in spread["spread"].items():
        parts = [report["collections"][name] for report in reports]
        judged = max(parts, key=lambda part: part["n_graphs"])  # the same in all that answer
        n_graphs += judged["n_graphs"]
        facts = (judged["n_graphs"], judged.get("noise_ceiling"))
        yield name, judged["metric"], *_cells(summary), *facts
    yield "mean", "", *_cells(spread["score"]), n_graphs, None


def _cells(summary: dict[str, float] | None) -> list[float | None]:
    return [summary[name] if summary else None for name in STATISTICS]
