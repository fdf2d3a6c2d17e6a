"""Write HTML pages of a report and its graphs, which need no network and fit a phone.

Each page is one file. Pages of graphs share one copy of plotly in their folder.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from common.files import atomic_path, write_text
from common.pages import library, number, render_page
from data.tree import collection_named
from submissions.report.charts import (
    family_charts,
    learning_charts,
    ranks_chart,
    slowdown_charts,
)
from submissions.run_report import CollectionReport, RunReport
from submissions.score import DIVERSIFIED, remarks_on

REPORT, GRAPH = (Path(__file__).with_name(f"{name}.html.j2") for name in ("report", "graph"))
# Pages per collection. A kernel on Kaggle has at most 500 files.
MAX_PAGES = 60
# Length of the file name of a page.
MAX_CHARACTERS = 120
FOLDER, LIBRARY = "graphs", "plotly.js"
METRIC_NAMES = {"kendall_tau": "Kendall tau", "tile_score": "tile score"}
FIGURES = ("opa", "slowdown@1", "slowdown@5", DIVERSIFIED, "slowdown@10", "n_configs")


def write_report_page(report: RunReport, path: Path, ranks: pl.DataFrame | None = None) -> None:
    """Write the page of a report, with `ranks` from `rank_points`. Equal reports: equal bytes."""
    collections = report.collections
    facts = report.model_dump() | {
        "collections": [_collection_view(name, part) for name, part in collections.items()],
        "n_scored": sum(part.value is not None for part in collections.values()),
        "remarks": remarks_on(report),
        "slowdowns": slowdown_charts(collections),
        "learning": learning_charts(report.learning_curves),
        "largest_gain": max(
            (abs(g) for m in report.models.values() for g in m.gains.values()), default=0
        ),
        "families": family_charts(collections),
        "most_pages": MAX_PAGES,
        "columns": ("graph", "score", "collection", *FIGURES),
        "rows": _graph_rows(collections, ranks),
        "reasons": Counter(entry.reason for entry in report.left_out).most_common(),
        "library": library(),
        "is_final": _is_final(report.config.get("recipe", {})),
    }
    write_text(path, render_page(REPORT, **facts))


def _is_final(recipe: Mapping[str, Any]) -> bool:
    tables = [recipe, *(table for table in recipe.values() if isinstance(table, Mapping))]
    return any("valid" in table.get("fit_on", ()) for table in tables)


def _collection_view(name: str, part: CollectionReport) -> dict[str, Any]:
    # Positions of the marks in percent. Both metrics end at 1, but tile scores have no lower end.
    places, value = dict[str, float](), part.value
    if value is not None:
        low, high = part.ci95 or (value, value)
        places = {"low": low, "high": high, "value": value, "zero": 0.0}
    start = min([0.0, *places.values()])
    curve, errors = part.slowdown_curve, {k: part.mean(f"top{k}_error") for k in (1, 5, 10)}
    return {
        **part.model_dump(),
        "name": name,
        "metric": METRIC_NAMES.get(part.metric, part.metric),
        "interval": " to ".join(map(number, part.ci95)) if part.ci95 else "",
        "fives": (curve.at(5), part.mean(DIVERSIFIED)) if curve else None,
        "seeds": part.seed_values,
        "errors": {k: error for k, error in errors.items() if error is not None},
        "mark": {key: round(100 * (x - start) / (1 - start), 2) for key, x in places.items()},
    }


def _graph_rows(
    collections: Mapping[str, CollectionReport], ranks: pl.DataFrame | None
) -> list[dict[str, Any]]:
    pages = [] if ranks is None else graphs_with_pages(collections, ranks)
    rows = []
    for name, part in collections.items():
        for graph, value in part.values().items():
            figures = [part.per_graph[graph].get(key) for key in FIGURES]
            href = graph_address(name, graph) if (name, graph) in pages else None
            rows.append({"cells": [graph, value, name, *figures], "href": href})
    return sorted(rows, key=lambda row: (row["cells"][1], row["cells"][0], row["cells"][2]))


def page_name(collection: str, graph: str) -> str:
    """Return the file name of a graph's page, without suffix, from letters that are legal in URLs.

    >>> page_name("layout:xla:random", "gru_b8")
    'layout-xla-random-gru_b8'
    """
    name = f"{collection_named(collection).slug}-{graph}"
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:MAX_CHARACTERS]
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return plain if plain == name else f"{plain}-{mark}"


def graph_address(collection: str, graph: str) -> str:
    """Return the address of a graph's page, relative to the report."""
    return f"{FOLDER}/{page_name(collection, graph)}.html"


def graphs_with_pages(
    collections: Mapping[str, CollectionReport], ranks: pl.DataFrame
) -> list[tuple[str, str]]:
    """List the graphs with a page: those of each collection with points and the lowest scores."""
    with_points = set(ranks.select("collection", "graph").unique().iter_rows())
    pages = []
    for name, part in collections.items():
        scores = part.values()
        graphs = sorted(scores, key=lambda graph: (scores[graph], graph))
        pages += [(name, graph) for graph in graphs if (name, graph) in with_points][:MAX_PAGES]
    return pages


def write_graph_pages(out: Path, report: RunReport, ranks: pl.DataFrame) -> None:
    """Write the pages of graphs into OUT/graphs, with `ranks` from `rank_points`."""
    points = ranks.partition_by("collection", "graph", as_dict=True)
    pages = graphs_with_pages(report.collections, ranks)
    texts = {LIBRARY: library()} if pages else {}
    for collection, graph in pages:
        of_graph = points[collection, graph]
        figures = report.collections[collection].per_graph[graph]
        members = report.models[collection].members if collection in report.models else []
        texts[f"{page_name(collection, graph)}.html"] = render_page(
            GRAPH,
            collection=collection,
            graph=graph,
            figures={key: value for key, value in figures.items() if value is not None},
            points=of_graph,
            chart=ranks_chart(graph, of_graph, members[: len(of_graph["members"][0])]),
            library=LIBRARY,
        )
    for name, text in texts.items():
        # The command `report` can write these files again, so they need no sync to the disk.
        with atomic_path(out / FOLDER / name, durable=False) as temporary:
            temporary.write_bytes(text.encode())
