"""HTML pages that need no network and are readable on a phone: a report and its graphs.

A page is one file; those of graphs share one copy of plotly in their folder.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from common.atomic import atomic_path, write_text
from common.errors import PipelineError
from common.pages import number, render_page
from data.manifest import read_manifest
from data.tree import collection_named
from submissions.report.charts import (
    CURVE_PICKS,
    Chart,
    learning_charts,
    library,
    ranks_chart,
    slowdown_charts,
)
from submissions.score import DIVERSIFIED, remarks_on

REPORT, GRAPH = (Path(__file__).with_name(f"{name}.html.j2") for name in ("report", "graph"))
# Of a collection with more graphs, these many are charted: the worst, the best, and evenly between.
MAX_SCATTERS = 12
MOST_PAGES = 60  # of a collection: Kaggle hands out no more than 500 files of a kernel
MOST_CHARACTERS = 120  # of a page's name
FOLDER, LIBRARY = "graphs", "plotly.js"  # of graphs' pages, and what they share
METRIC_NAMES = {"kendall_tau": "Kendall tau", "tile_score": "tile score"}
FIGURES = ("opa", "slowdown@1", "slowdown@5", DIVERSIFIED, "slowdown@10", "n_configs")
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
            stage). Of data that `collect` has measured, the manifest in the folder `data` is read.
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
        "measured_on": _measured_on(known["data"]),
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
    write_text(path, render_page(REPORT, **known))


def _measured_on(data: str | None) -> list[str]:
    """Return the machines of the manifest that `collect` left in the data folder, if there is one.

    Such as "cpu (AMD EPYC, 2 cores)".
    """
    try:
        machines = read_manifest(Path(data))["environments"].values() if data else ()
        facts = [(own["platform"], own.get("cpu")) for own in machines]
    except (PipelineError, TypeError, KeyError, AttributeError):
        return []  # damaged, or somebody else's: the page does not rest on it
    return sorted({f"{device} ({cpu})" if cpu else str(device) for device, cpu in facts})


def _collection_view(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    metric, value, interval = part["metric"], part["value"], part["ci95"]
    low, high = interval or (value, value)
    # Where the marks stand, in percent: both metrics end at 1, tile scores have no end below.
    places = {} if value is None else {"low": low, "high": high, "value": value, "zero": 0.0}
    start = min([0.0, *places.values()])
    optional = dict.fromkeys(("baseline", "noise_ceiling", "seed_sd"))
    curve = part.get("slowdown_curve")
    fives = (curve["model"][CURVE_PICKS.index(5)], part.get(DIVERSIFIED)) if curve else None
    return {
        **optional,
        **part,
        "name": name,
        "metric": METRIC_NAMES.get(metric, metric),
        "interval": f"{number(low)} to {number(high)}" if interval else "",
        "fives": fives,
        "seeds": part.get("seed_values", {}),
        "errors": {
            k: part[f"top{k}_error"] for k in (1, 5, 10) if part.get(f"top{k}_error") is not None
        },
        "mark": {name: round(100 * (x - start) / (1 - start), 2) for name, x in places.items()},
    }


def _scatters(
    collections: Mapping[str, Mapping[str, Any]], ranks: pl.DataFrame | None
) -> list[Chart]:
    points = {} if ranks is None else ranks.partition_by("collection", "graph", as_dict=True)
    charts: list[Chart] = []
    for name, part in collections.items():
        scores = {graph: own[part["metric"]] for graph, own in part["per_graph"].items()}
        graphs = sorted((scores[g], g) for g in scores if (name, g) in points)
        n_charted = min(len(graphs), MAX_SCATTERS)
        some = [graphs[i] for i in np.linspace(0, len(graphs) - 1, n_charted).round().astype(int)]
        if some:
            named = {f"{graph}: {value:.3f}": points[name, graph] for value, graph in some}
            charts.append(ranks_chart(name, named))
    return charts


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


def page_name(collection: str, graph: str) -> str:
    """Return the file name, without suffix, of a graph's page; it can stand in any address.

    >>> page_name("layout:xla:random", "gru_b8")
    'layout-xla-random-gru_b8'
    """
    name = f"{collection_named(collection).slug}-{graph}"
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MOST_CHARACTERS]
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain if plain == name else f"{plain}-{mark}"


def graph_address(collection: str, graph: str) -> str:
    """Return the address of a graph's page, as the report beside the folder names it."""
    return f"{FOLDER}/{page_name(collection, graph)}.html"


def graphs_with_pages(report: Mapping[str, Any], ranks: pl.DataFrame) -> list[tuple[str, str]]:
    """List collection and graph of the pages: of each collection the graphs that did worst."""
    known = set(ranks.select("collection", "graph").unique().iter_rows())
    pages = []
    for name, part in report.get("collections", {}).items():
        scores = {graph: own[part["metric"]] for graph, own in part["per_graph"].items()}
        graphs = sorted(scores, key=lambda graph: (scores[graph], graph))
        pages += [(name, graph) for graph in graphs if (name, graph) in known][:MOST_PAGES]
    return pages


def write_graph_pages(
    out: Path,
    report: Mapping[str, Any],
    ranks: pl.DataFrame,
    best: pl.DataFrame | None,
) -> None:
    """Write OUT/graphs with the graphs' pages; the same report gives the same bytes.

    Args:
        out: Folder of the run.
        report: Content of report.json.
        ranks: Points as `rank_points` makes them.
        best: Decisions of the configs with the best scores, a row of BEST_SCHEMA per graph.

    Raises:
        PipelineError: A file cannot be written.
    """
    points = ranks.partition_by("collection", "graph", as_dict=True)
    rows = [] if best is None else best.iter_rows(named=True)
    decided = {(row["collection"], row["graph"]): row for row in rows}
    pages = graphs_with_pages(report, ranks)
    texts = {LIBRARY: library()} if pages else {}
    for collection, graph in pages:
        own = points[collection, graph]
        figures = report["collections"][collection]["per_graph"][graph]
        members = report.get("models", {}).get(collection, {}).get("members", [])
        title = "One point per config; green: the fastest"
        texts[f"{page_name(collection, graph)}.html"] = render_page(
            GRAPH,
            collection=collection,
            graph=graph,
            figures={key: value for key, value in figures.items() if value is not None},
            points=own,
            chart=ranks_chart(title, {graph: own}, members[: len(own["members"][0])]),
            best=decided.get((collection, graph)),
            slowdowns=dict(own.select("config", "slowdown").iter_rows()),
            library=LIBRARY,
        )
    for name, text in texts.items():
        # Not synchronised with the disk: `report` writes them again.
        with atomic_path(out / FOLDER / name, durable=False) as temporary:
            temporary.write_bytes(text.encode())
