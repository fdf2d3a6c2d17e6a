"""A page for each judged graph, in the folder `graphs`: they share one copy of plotly there."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from common.atomic import atomic_path
from data.tree import collection_named
from submissions.report.charts import library, ranks_chart
from submissions.report.render import render_page

TEMPLATE = Path(__file__).with_name("graph.html.j2")
FOLDER, LIBRARY = "graphs", "plotly.js"
MOST_CHARACTERS = 120  # of a page's name
MOST_PAGES = 60  # of a collection: Kaggle hands out no more than 500 files of a kernel


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
    *,
    alone: tuple[str, str] | None = None,
) -> None:
    """Write OUT/graphs with the graphs' pages; the same report gives the same bytes.

    Args:
        report: what report.json holds.
        ranks: points as `rank_points` makes them.
        best: what the configs ranked first decide, a row of BEST_SCHEMA per graph.
        alone: collection and graph of one more page, which holds plotly itself, and so can be sent
            to somebody.

    Raises:
        PipelineError: a file cannot be written.
    """
    folder = out / FOLDER
    points = ranks.partition_by("collection", "graph", as_dict=True)
    rows = [] if best is None else best.iter_rows(named=True)
    decided = {(row["collection"], row["graph"]): row for row in rows}
    pages = dict.fromkeys([*graphs_with_pages(report, ranks), *([alone] if alone else [])])
    if pages:
        _write(folder / LIBRARY, library())
    for collection, graph in pages:
        name, own = page_name(collection, graph), points[collection, graph]
        figures = report["collections"][collection]["per_graph"][graph]
        members = report.get("models", {}).get(collection, {}).get("members", [])
        title = "One point per config; green: the fastest"
        picture = folder / f"{name}.svg"
        page = render_page(
            TEMPLATE,
            collection=collection,
            graph=graph,
            figures={key: value for key, value in figures.items() if value is not None},
            points=own,
            chart=ranks_chart(title, {graph: own}, members[: len(own["members"][0])]),
            best=decided.get((collection, graph)),
            slowdowns=dict(own.select("config", "slowdown").iter_rows()),
            explanation=_as_address(picture) if picture.is_file() else None,
            library=library() if (collection, graph) == alone else LIBRARY,
        )
        _write(folder / f"{name}.html", page)


def _as_address(picture: Path) -> str:
    return f"data:image/svg+xml;base64,{b64encode(picture.read_bytes()).decode()}"


def _write(path: Path, text: str) -> None:
    with atomic_path(path, durable=False) as temporary:  # made anew by `report`
        temporary.write_bytes(text.encode())
