"""The page of an audit: charts with a point per graph and a box per collection."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from common.pages import Chart, write_charts
from data.audit import AuditRow
from data.families import family_of

TABLE = (
    *("graph", "collection", "split", "family", "nodes", "edges", "configs", "distinct"),
    *("slowest / fastest", "tau"),
)
# An axis is logarithmic if the largest value is so many times the smallest one.
LOG_RANGE = 50


def audit_charts(rows: Sequence[AuditRow]) -> list[Chart]:
    """Return the charts of the graphs of an audit."""
    sizes = Counter((row.file.collection, family_of(row.file)) for row in rows)
    figures: dict[str, list[float | None]] = {
        "Nodes": [row.n_nodes for row in rows],
        "Configs": [row.n_configs for row in rows],
        "Runtimes: slowest config / fastest config": [row.spread for row in rows],
        "Repeats: measurements / distinct configs": [r.n_configs / r.n_distinct for r in rows],
        "Noise: tau between two measurements": [row.ceiling for row in rows],
        "Siblings: graphs of the family": [
            sizes[row.file.collection, family_of(row.file)] for row in rows
        ],
    }
    charts = [_boxes(title, rows, values) for title, values in figures.items()]
    return [chart for chart in charts if chart.data["groups"]]


def _boxes(title: str, rows: Sequence[AuditRow], values: Sequence[float | None]) -> Chart:
    groups: dict[str, dict[str, Any]] = {}
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            group = groups.setdefault(row.file.collection.name, {"values": [], "names": []})
            group["values"].append(round(value, 6))
            group["names"].append(f"{row.file.split}/{row.file.name}")
    known = [value for value in values if value is not None]
    is_log = bool(known) and min(known) > 0 and max(known) > LOG_RANGE * min(known)
    texts = (
        f"{name} {min(g['values']):.4g}, {median(g['values']):.4g}, {max(g['values']):.4g}"
        for name, g in groups.items()
    )
    text = f"smallest, median and largest: {'; '.join(texts)}"
    name, _, axis = title.partition(": ")
    data = {"groups": groups, "axis": axis or name.lower(), "log": is_log}
    return Chart("boxes", name, text, data)


def write_audit_page(path: Path, rows: Sequence[AuditRow], title: str) -> None:
    """Write the page of an audit. Damaged files have no point and no row."""
    good = [row for row in rows if not row.error]
    cells = [
        [
            *(row.file.name, row.file.collection.name, row.file.split, family_of(row.file)),
            *(row.n_nodes, row.n_edges, row.n_configs, row.n_distinct, row.spread, row.ceiling),
        ]
        for row in good
    ]
    note = (
        f"Each of {len(good)} graphs is a point, and each collection is a box. "
        f"{len(rows) - len(good)} damaged files are left out. Point at a mark to see its graph. "
        "Graphs of a family differ in sizes only, so a model that has seen one knows the others."
    )
    write_charts(path, title, note, audit_charts(good), kind="graphs", columns=TABLE, rows=cells)
