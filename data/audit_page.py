"""The page of an audit: charts with a point per graph and a box per collection."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from common.pages import Chart, groups_of, write_charts
from data.audit import AuditRow
from data.families import family_of

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
    groups = groups_of(
        (row.file.collection.name, f"{row.file.split}/{row.file.name}", None, round(value, 6))
        for row, value in zip(rows, values, strict=True)
        if value is not None
    )
    known = [value for value in values if value is not None]
    text = "; ".join(f"{name}: median {median(group['y']):.4g}" for name, group in groups.items())
    name, _, axis = title.partition(": ")
    is_log = bool(known) and max(known) > LOG_RANGE * min(known) > 0
    data = {"groups": groups, "axis": axis or name.lower(), "log": is_log}
    return Chart("boxes", name, text, data)


def write_audit_page(path: Path, rows: Sequence[AuditRow], title: str) -> None:
    """Write the page of an audit. Damaged files have no point."""
    good = [row for row in rows if not row.error]
    note = (
        f"Each of {len(good)} graphs is a point, and each collection is a box. "
        "A collection of over 500 graphs has points for outliers only. "
        f"{len(rows) - len(good)} damaged files are left out. Point at a mark to see its graph. "
        "Graphs of a family differ in sizes only, so a model that has seen one knows the others."
    )
    write_charts(path, title, note, audit_charts(good))
