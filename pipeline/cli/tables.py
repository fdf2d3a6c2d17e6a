"""A paired comparison as the commands print it."""

from collections.abc import Mapping
from typing import Any

from pipeline.cli.console import print_table, say

HEADER = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)


def print_comparison(compared: Mapping[str, Any]) -> None:
    """Print what `compare_reports` found: a row per collection, and their mean.

    Graphs that only one of the two has judged are counted on standard error.
    """
    rows = []
    for name, entry in {**compared["collections"], "mean": compared["mean"]}.items():
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        rows.append((name, *counts, *values, *interval, entry["probability"]))
    print_table(HEADER, rows)
    for name, entry in compared["collections"].items():
        if entry["only_in_one"]:
            say(f"{name}: {entry['only_in_one']} graphs that only one of the two has judged")
    alone = [name for name, entry in compared["collections"].items() if entry["ci95"] is None]
    if alone:
        say(f"no interval, nor one of the mean: graphs of one family alone in {', '.join(alone)}")
