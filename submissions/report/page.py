"""The report as one HTML page that needs nothing else: no network, and readable on a phone."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.atomic import write_text
from submissions.report.charts import (
    Chart,
    learning_charts,
    library,
    ranks_chart,
    slowdown_charts,
)
from submissions.report.graph_pages import MOST_PAGES, graph_address, graphs_with_pages
from submissions.report.render import number, render_page
from submissions.score import remarks_on

TEMPLATE = Path(__file__).with_name("report.html.j2")
# Of a collection with more graphs, these many are charted: the worst, the best, and evenly between.
MAX_SCATTERS = 12
METRIC_NAMES = {"kendall_tau": "Kendall tau", "tile_score": "tile score"}
FIGURES = ("opa", "slowdown@1", "slowdown@5", "slowdown@10", "n_configs")
LISTS = ("left_out", "missing_parts", "bad_files", "seeds", "learning_curves")
TABLES = ("collections", "models", "environment", "seconds", "peak_mib")


def write_report_page(
    report: Mapping[str, Any], path: Path, ranks: pl.DataFrame | None = None
) -> None:
    """Write the page of a report, whole or not at all; the same report gives the same bytes.

    Args:
        report: what report.json holds: `score`, `collections` and `left_out` as
            `submissions.score.score_submission` returns them. All else may be missing: `models`
            (by collection `members`, `importances`, `fallback_from`, `reason`, `blend`), `seeds`,
            `environment` (by name), `revision`, `missing_parts` ("collection/split"), `bad_files`
            (a line for each), `recipe`, `data`, `learning_curves`, `seconds` and `peak_mib` (by
            stage).
        ranks: points of each graph, as `rank_points` makes them.

    Raises:
        PipelineError: the file cannot be written.
    """
    empty = dict.fromkeys(("score", "recipe", "data", "revision"))
    known: dict[str, Any] = {name: [] for name in LISTS} | {name: {} for name in TABLES} | empty
    known |= report
    collections = known["collections"]
    views = [_collection_view(name, part) for name, part in collections.items()]
    known |= {
        "collections": views,
        "n_scored": sum(part["value"] is not None for part in views),
        "remarks": remarks_on(report),
        "slowdowns": slowdown_charts(collections),
        "learning": learning_charts(known["learning_curves"]),
        "scatters": _scatters(collections, ranks),
        "most_scatters": MAX_SCATTERS,
        "most_pages": MOST_PAGES,
        "columns": ("graph", "score", "collection", *FIGURES),
        "rows": _graph_rows(collections, ranks),
        "reasons": Counter(entry["reason"] for entry in known["left_out"]).most_common(),
        "library": library(),
    }
    write_text(path, render_page(TEMPLATE, **known))


def _collection_view(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    metric, value, interval = part["metric"], part["value"], part["ci95"]
    low, high = interval or (value, value)
    optional = dict.fromkeys(("floor", "noise_ceiling", "seed_sd"))
    return {
        **optional,
        **part,
        "name": name,
        "metric": METRIC_NAMES.get(metric, metric),
        "interval": "" if interval is None else f"{number(low)} to {number(high)}",
        "seeds": part.get("seed_values", {}),
        "errors": {
            k: part[f"top{k}_error"] for k in (1, 5, 10) if part.get(f"top{k}_error") is not None
        },
        "mark": None if value is None else _mark(low, value, high),
    }


def _mark(low: float, value: float, high: float) -> dict[str, float]:
    """Return where the marks stand, in percent; both metrics end at 1, tile scores have no end."""
    floor = min(0.0, low)
    places = {"low": low, "high": high, "value": value, "zero": 0.0}
    return {name: round(100 * (place - floor) / (1 - floor), 2) for name, place in places.items()}


def _scatters(
    collections: Mapping[str, Mapping[str, Any]], ranks: pl.DataFrame | None
) -> list[Chart]:
    charts: list[Chart] = []
    for name, part in collections.items():
        graphs = _graphs_by_score(name, part, ranks)
        n_charted = min(len(graphs), MAX_SCATTERS)
        some = [graphs[i] for i in np.linspace(0, len(graphs) - 1, n_charted).round().astype(int)]
        named = {f"{graph}: {value:.3f}": points for value, graph, points in some}
        if named:
            charts.append(ranks_chart(name, named))
    return charts


def _graphs_by_score(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> list[tuple[float, str, pl.DataFrame]]:
    if ranks is None:
        return []
    own = ranks.filter(pl.col("collection") == name).partition_by("graph", as_dict=True)
    scores = {graph: found[part["metric"]] for graph, found in part["per_graph"].items()}
    found = [(scores[graph], graph, own[graph,]) for (graph,) in own if graph in scores]
    return sorted(found, key=lambda entry: entry[:2])


def _graph_rows(
    collections: Mapping[str, Mapping[str, Any]], ranks: pl.DataFrame | None
) -> list[dict[str, Any]]:
    pages = [] if ranks is None else graphs_with_pages({"collections": collections}, ranks)
    rows = []
    for name, part in collections.items():
        for graph, figures in part["per_graph"].items():
            values = [figures.get(key) for key in FIGURES]
            href = graph_address(name, graph) if (name, graph) in pages else None
            rows.append({"cells": [graph, figures[part["metric"]], name, *values], "href": href})
    return sorted(rows, key=lambda row: (row["cells"][1], row["cells"][0], row["cells"][2]))
