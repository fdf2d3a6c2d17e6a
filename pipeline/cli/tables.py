"""Scores as the commands print them: of one submission, of two runs compared."""

from collections.abc import Mapping
from typing import Any

from pipeline.cli.console import print_table, say
from submissions.score import remarks_on

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
    judged = sum(row[2] is not None for row in rows)
    mean = "mean" if judged == len(rows) else f"mean of {judged} of {len(rows)}"
    rows.append((mean, "", report["score"], None, None, sum(row[5] for row in rows), None, None))
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
