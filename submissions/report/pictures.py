"""The report's curves by matplotlib, all on one sheet, as PNG."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.atomic import atomic_path
from submissions.report.charts import learning_charts, slowdown_charts
from submissions.report.curves import CURVE_PICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAINT, OURS, FLOOR, CEILING = "#5b6672", "#1f6feb", "#c4432b", "#2c974b"
MARKS = 4.5
# The sheet: a row of all scores, then rows of three pictures. Places are fixed: to have matplotlib
# find them takes five times as long as to draw.
WIDTH_INCHES, ROW_INCHES, DPI = 11.0, 3.0, 110
SCORES = (0.17, 0.27, 0.8, 0.52)
PLACES = [(left, 0.2, 0.25, 0.6) for left in (0.06, 0.38, 0.69)]
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#e3e7eb",
    "grid.linewidth": 0.6,
}


@contextmanager
def picture(path: Path, size_inches: tuple[float, float]) -> Iterator["Figure"]:
    """Yield an empty figure to draw on, which no window system knows of, and write it as a PNG.

    Raises:
        PipelineError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size_inches)
        FigureCanvasAgg(figure)
        yield figure
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def draw_scores(axes: "Axes", collections: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw each judged collection's value, with its interval, floor and noise ceiling if known."""
    judged = {name: part for name, part in collections.items() if part["value"] is not None}
    for row, part in enumerate(judged.values()):
        low, high = part["ci95"] or (part["value"], part["value"])
        axes.plot(
            [low, high], [row, row], color=OURS, linewidth=5, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot(part["value"], row, "o", color=OURS, markersize=7)
        for key, colour in (("floor", FLOOR), ("noise_ceiling", CEILING)):
            if part.get(key) is not None:
                axes.plot(part[key], row, "|", color=colour, markersize=14, markeredgewidth=2)
    for colour, mark, label in (
        (OURS, "o", "this run, 95 % interval"),
        (FLOOR, "|", "floor: no training"),
        (CEILING, "|", "noise ceiling"),
    ):
        axes.plot([], [], mark, color=colour, label=label, markersize=8, markeredgewidth=2)
    axes.set_yticks(range(len(judged)), list(judged))
    axes.set_ylim(len(judged) - 0.4, -0.6)
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), 1.02)  # alike on every sheet
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    axes.set_title("Score by collection (1 is perfect)", loc="left")


def draw_slowdown(axes: "Axes", curve: Mapping[str, Any]) -> None:
    """Draw by how much the best of the first K picks is slower than the best of all, over K."""
    for name, colour in (("floor", FLOOR), ("model", OURS)):
        if curve.get(name):
            label = "this run" if name == "model" else "floor"
            excess = 100 * (np.array(curve[name]) - 1)
            axes.plot(CURVE_PICKS, excess, "o-", color=colour, markersize=MARKS, label=label)
    axes.set_xscale("log")
    axes.set_xticks([1, 5, 10, 100], ["1", "5", "10", "100"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("K: configs measured, best predicted first")
    axes.set_ylabel("slower than the best, %")
    axes.legend(frameon=False)


def draw_learning(axes: "Axes", curves: Sequence[Mapping[str, Any]]) -> None:
    """Draw losses over steps, one line per model; what was held out on an axis of its own."""
    held_out = None
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        axes.plot(curve["step"], curve["loss"], color=colour, label=curve["member"])
        if curve["held_out"]:
            held_out = held_out or axes.twinx()
            held_out.plot(curve["held_out_step"], curve["held_out"], "--", color=colour)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    if held_out is not None:
        held_out.set_ylabel("held out (dashed)")
    axes.legend(frameon=False)


def write_overview(report: Mapping[str, Any], path: Path) -> None:
    """Write scores, slowdown curves and learning curves as one picture.

    Raises:
        PipelineError: the file cannot be written.
    """
    collections = report.get("collections", {})
    slowdowns = [entry for chart in slowdown_charts(collections) for entry in chart.data.items()]
    panels = [(name, partial(draw_slowdown, curve=curve)) for name, curve in slowdowns]
    for chart in learning_charts(report.get("learning_curves", [])):
        panels.append((chart.title, partial(draw_learning, curves=chart.data)))
    n_rows = 1 + math.ceil(len(panels) / len(PLACES))
    with picture(path, (WIDTH_INCHES, ROW_INCHES * n_rows)) as figure:
        rows = figure.subfigures(n_rows, 1, squeeze=False)[:, 0]
        rows[0].suptitle(_heading(report), fontsize=11, fontweight="bold", x=0.01, ha="left")
        axes = rows[0].add_axes(SCORES)
        if any(part["value"] is not None for part in collections.values()):
            draw_scores(axes, collections)
        else:
            axes.set_axis_off()
            axes.text(0, 0.5, "No collection has been judged by measured runtimes.", color=FAINT)
        for number, (title, draw) in enumerate(panels):
            axes = rows[1 + number // len(PLACES)].add_axes(PLACES[number % len(PLACES)])
            axes.set_title(title, loc="left")
            draw(axes)


def _heading(report: Mapping[str, Any]) -> str:
    score = report.get("score")
    parts = (
        f"recipe {report['recipe']}" if report.get("recipe") else None,
        None if score is None else f"score {score:.4f}",
        f"revision {report['revision']}" if report.get("revision") else None,
    )
    return ", ".join(part for part in parts if part)
