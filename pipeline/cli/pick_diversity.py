"""The spread of several submissions as `score` prints it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from pipeline.cli.console import print_json, print_table, say
from submissions.pick_diversity import Report, Spread, spread_of

STATISTICS = ("mean", "sd", "min", "max")


def print_spread(files: Sequence[Path], reports: Sequence[Report], *, json: bool) -> None:
    """Print mean, standard deviation and range over submissions, by collection.

    Collections that some submissions answer and some do not are named on standard error.

    Args:
        files: where each report's rankings come from.
        reports: at least two, by `score_submission`.
        json: print JSON, with the reports in full.
    """
    spread = spread_of(reports)
    for name in spread.answered_by_some:
        silent = [
            str(file)
            for file, report in zip(files, reports, strict=True)
            if report["collections"][name]["value"] is None
        ]
        say(f"{name}: no spread, nor one of the mean: not answered by {', '.join(silent)}")
    if json:
        print_json(_as_json(files, reports, spread))
        return
    for item in reports[0]["left_out"]:
        if all(item in report["left_out"] for report in reports):
            typer.echo(f"left out: {item['graph']}: {item['reason']}")
    header = ("collection", "metric", *STATISTICS, "graphs", "ceiling")
    print_table(header, list(_rows(reports, spread)), if_known=("ceiling",))


def _rows(reports: Sequence[Report], spread: Spread) -> Iterator[Sequence[object]]:
    n_graphs = 0
    for name, summary in spread.collections.items():
        parts = [report["collections"][name] for report in reports]
        judged = max(parts, key=lambda part: part["n_graphs"])  # the same in all that answer
        n_graphs += judged["n_graphs"]
        facts = (judged["n_graphs"], judged.get("noise_ceiling"))
        yield name, judged["metric"], *_cells(summary), *facts
    yield "mean", "", *_cells(spread.score), n_graphs, None


def _cells(summary: dict[str, float] | None) -> list[float | None]:
    return [summary[name] if summary else None for name in STATISTICS]


def _as_json(files: Sequence[Path], reports: Sequence[Report], spread: Spread) -> dict[str, Any]:
    submissions = [
        {
            "file": str(file),
            "score": report["score"],
            "collections": {name: part["value"] for name, part in report["collections"].items()},
        }
        for file, report in zip(files, reports, strict=True)
    ]
    return {
        "submissions": submissions,
        "spread": spread.collections,
        "score": spread.score,
        "reports": list(reports),
    }
