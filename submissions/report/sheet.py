"""The report on one sheet, as PNG: for a chat, a slide or a pull request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from common.atomic import atomic_path
from submissions.report.pictures import (
    STYLE,
    draw_learning,
    draw_ranks,
    draw_scores,
    draw_slowdown,
    middle_graph,
    new_figure,
)

WIDTH_INCHES, ROW_INCHES, DPI = 11.0, 3.0, 110
MISSING = "#5b6672"
MAX_TITLE = 42  # characters
# Left, bottom, width and height of the pictures in a row, as shares of it.
SCORES = (0.17, 0.27, 0.8, 0.52)
PLACES = [(left, 0.2, 0.25, 0.6) for left in (0.06, 0.38, 0.69)]


def write_overview(report: Mapping[str, Any], ranks: pl.DataFrame | None, path: Path) -> None:
    """Write scores, slowdown curves, scatters and learning curves as one picture.

    A row for all scores, then a row for each judged collection: slowdown, the graph in the middle
    by score, learning curves. What is missing is said in its place.

    Raises:
        PipelineError: the file cannot be written.
    """
    from matplotlib import rc_context

    collections = report.get("collections", {})
    judged = [name for name, part in collections.items() if part["value"] is not None]
    learned = dict.fromkeys(curve["group"] for curve in report.get("learning_curves", []))
    names = judged or list(learned)
    with rc_context(STYLE):
        figure = new_figure((WIDTH_INCHES, ROW_INCHES * (1 + len(names))))
        rows = figure.subfigures(1 + len(names), 1, squeeze=False)[:, 0]
        rows[0].suptitle(_heading(report), fontsize=11, fontweight="bold", x=0.01, ha="left")
        if judged:
            draw_scores(rows[0].add_axes(SCORES), collections)
        else:
            _say(rows[0].add_axes(SCORES), "No collection has been judged by measured runtimes.")
        for row, name in zip(rows[1:], names, strict=True):
            _collection_row(row, name, report, ranks)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def _heading(report: Mapping[str, Any]) -> str:
    """Return what tells one sheet from another: recipe, score and revision, where known."""
    score = report.get("score")
    parts = (
        f"recipe {report['recipe']}" if report.get("recipe") else None,
        None if score is None else f"score {score:.4f}",
        f"revision {report['revision']}" if report.get("revision") else None,
    )
    return ", ".join(part for part in parts if part)


def _collection_row(
    row: Any, name: str, report: Mapping[str, Any], ranks: pl.DataFrame | None
) -> None:
    row.suptitle(name, fontsize=11, fontweight="bold", x=0.01, ha="left")
    slowdown, scatter, learning = (row.add_axes(place) for place in PLACES)
    part = report.get("collections", {}).get(name, {"metric": "", "per_graph": {}})
    curve = part.get("slowdown_curve")
    draw_slowdown(slowdown, curve) if curve else _say(slowdown, "no slowdown curve")
    middle = middle_graph(name, part, ranks)
    if middle is None:
        _say(scatter, "no predicted ranks")
    else:
        draw_ranks(scatter, middle[1])
        scatter.set_title(_shortened(middle[0]), loc="left")
    curves = [curve for curve in report.get("learning_curves", []) if curve["group"] == name]
    draw_learning(learning, curves) if curves else _say(learning, "no learning curve")


def _shortened(title: str) -> str:
    """Leave out the middle of a title that would run into the next picture."""
    half = MAX_TITLE // 2
    return title if len(title) <= MAX_TITLE else f"{title[:half]}…{title[-half:]}"


def _say(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=MISSING)
