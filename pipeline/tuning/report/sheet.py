"""All pictures of a search on one sheet: tune.png."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from common.atomic import atomic_path
from pipeline.tuning.report.plots import (
    draw_front,
    draw_history,
    draw_importances,
    draw_parallel,
    draw_slice,
)
from pipeline.tuning.report.study import Search
from submissions.report.pictures import STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, DPI = 11.0, 110
UPPER, LINES, SLICES = 3.2, 3.2, 2.4  # inches a row is high: history; parallel coordinates; slices
SLICES_PER_ROW = 4
COSTS = {
    "score-and-training-time": "seconds of training, all folds",
    "score-and-inference-time": "seconds of inference per 1,000 configs",
}
NO_VALUES = "No trial has a value yet."
TOO_FEW = "Too few trials, or all alike: nothing can be said on importances."


def by_importance(search: Search, shares: Mapping[str, float]) -> list[str]:
    """Return the parameters that a trial with a value has, the most important one first."""
    keys = sorted(search.space.parameters, key=lambda key: -shares.get(key, 0.0))
    return [key for key in keys if any(key in trial.params for trial in search.complete)]


def write_sheet(search: Search, shares: Mapping[str, float], path: Path) -> None:
    """Draw all of a search into one PNG file; the same search gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = draw_sheet(search, shares)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def draw_sheet(search: Search, shares: Mapping[str, float]) -> "Figure":
    """Draw history, importances, the Pareto front if there is one, parallel coordinates, slices."""
    keys = by_importance(search, shares)
    rows = [UPPER, LINES, *[SLICES] * -(-len(keys) // SLICES_PER_ROW)]
    figure = new_figure((WIDTH_INCHES, sum(rows)))
    top = sum(rows)
    upper = _row(figure, top, rows[0], 3 if search.timed else 2)
    study = search.space.study
    draw_history(upper[0], search)
    upper[0].set_title(f"{study.model} on {study.collection}", loc="left")
    draw_importances(upper[1], shares) if shares else _say(upper[1], TOO_FEW)
    if search.timed:
        draw_front(upper[2], search.timed, COSTS[study.objectives])
    [lines] = _row(figure, top - UPPER, LINES, 1)
    if search.complete:
        draw_parallel(lines, search.space, search.complete)
    else:
        _say(lines, NO_VALUES)
    for first in range(0, len(keys), SLICES_PER_ROW):
        below = top - UPPER - LINES - SLICES * (first // SLICES_PER_ROW)
        own = keys[first : first + SLICES_PER_ROW]
        row = _row(figure, below, SLICES, SLICES_PER_ROW)
        for axes, key in zip(row, own, strict=False):
            draw_slice(axes, key, search.space.parameters[key], search.complete)
        for axes in row[len(own) :]:
            axes.remove()
    return figure


def _row(figure: "Figure", top: float, height: float, count: int) -> "list[Axes]":
    """Add axes side by side, below a line `top` inches above the lower edge of the sheet."""
    whole = figure.get_size_inches()[1]
    width = 1 / count
    return [
        figure.add_axes(
            (
                i * width + 0.7 / WIDTH_INCHES,
                (top - height + 0.5) / whole,
                width - 0.9 / WIDTH_INCHES,
                (height - 0.85) / whole,
            )
        )
        for i in range(count)
    ]


def _say(axes: "Axes", text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
