"""The report's pictures by matplotlib: SVG that a page can hold, and all on one sheet, as PNG."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from common.atomic import atomic_path
from submissions.report.curves import CURVE_PICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAINT, OURS, FLOOR, CEILING = "#5b6672", "#1f6feb", "#c4432b", "#2c974b"
MARKS = 4.5
# Of a collection with more graphs, these many are drawn: the worst, the best, and evenly between.
MAX_SCATTERS = 12
# Fixed places: to have matplotlib find them takes five times as long as to draw.
AXES = (0.14, 0.15, 0.73, 0.82)  # left, bottom, width, height as shares of the picture
SIZE_INCHES = (4.4, 3.1)  # as wide as a phone: text stays readable where pictures stand alone
# The sheet: a row of all scores, then one of three pictures per collection.
WIDTH_INCHES, ROW_INCHES, DPI = 11.0, 3.0, 110
SCORES = (0.17, 0.27, 0.8, 0.52)
PLACES = [(left, 0.2, 0.25, 0.6) for left in (0.06, 0.38, 0.69)]
MAX_TITLE = 42  # characters
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#e3e7eb",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same report gives the same bytes
}


@dataclass(frozen=True)
class Picture:
    """One picture of a page: `title` above it, `told` in words, `address` the data: URL of it."""

    title: str
    told: str
    address: str


def picture(title: str, told: str, draw: "Callable[[Axes], None]") -> Picture:
    """Draw one picture; the same content gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(SIZE_INCHES)
        draw(figure.add_axes(AXES))
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    encoded = base64.b64encode(content.getvalue()).decode()
    return Picture(title, told, f"data:image/svg+xml;base64,{encoded}")


def new_figure(size_inches: tuple[float, float]) -> "Figure":
    """Return an empty figure that no window system knows of; sets no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches)
    FigureCanvasAgg(figure)
    return figure


def slowdown_pictures(collections: Mapping[str, Mapping[str, Any]]) -> list[Picture]:
    """Draw the slowdown over the number of picks, of each collection that was judged."""
    pictures = []
    for name, part in collections.items():
        curve = part.get("slowdown_curve")
        if curve:
            told = "; ".join(
                f"best of {k}: {100 * (curve['model'][CURVE_PICKS.index(k)] - 1):.1f} % slower"
                for k in (1, 5, 10, 100)
            )
            pictures.append(picture(name, told, partial(draw_slowdown, curve=curve)))
    return pictures


def rank_pictures(name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None) -> list[Picture]:
    """Draw predicted rank against runtime for graphs of one collection, the worst first."""
    graphs = _graphs_by_score(name, part, ranks)
    n_drawn = min(len(graphs), MAX_SCATTERS)
    pictures = []
    for place in np.linspace(0, len(graphs) - 1, n_drawn).round().astype(int):
        value, graph, points = graphs[place]
        told = f"predicted rank against runtime of {points.height} configs; {value:.3f}"
        pictures.append(picture(f"{graph}: {value:.3f}", told, partial(draw_ranks, points=points)))
    return pictures


def _graphs_by_score(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> list[tuple[float, str, pl.DataFrame]]:
    if ranks is None:
        return []
    own = ranks.filter(pl.col("collection") == name).partition_by("graph", as_dict=True)
    scores = {graph: found[part["metric"]] for graph, found in part["per_graph"].items()}
    found = [(scores[graph], graph, own[graph,]) for (graph,) in own if graph in scores]
    return sorted(found, key=lambda entry: entry[:2])


def learning_pictures(curves: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Draw the learning curves of one collection's models, one picture per collection and model."""
    pictures = []
    for (group, model), own in groupby(
        curves, key=lambda c: (c["group"], c["member"].rsplit("-seed", 1)[0])
    ):
        listed = list(own)
        last = ", ".join(f"{curve['member']} {curve['loss'][-1]:.3f}" for curve in listed)
        told = f"loss over steps; at the end: {last}"
        title = f"{group}: {model}" if group else model
        pictures.append(picture(title, told, partial(draw_learning, curves=listed)))
    return pictures


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


def draw_ranks(axes: "Axes", points: pl.DataFrame) -> None:
    """Draw the configs of one graph: how slow each is, by the rank it was given."""
    axes.scatter(
        points["rank"].to_numpy() + 1,
        points["slowdown"].to_numpy(),
        s=9,
        color=OURS,
        alpha=0.55,
        linewidths=0,
    )
    axes.axhline(1, color=CEILING, linewidth=1)
    axes.set_xlabel("predicted rank (1 = fastest)")
    axes.set_ylabel("runtime / fastest")


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


def write_overview(report: Mapping[str, Any], ranks: pl.DataFrame | None, path: Path) -> None:
    """Write scores, slowdown curves, scatters and learning curves as one picture.

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
    graphs = _graphs_by_score(name, part, ranks)
    if graphs:
        value, graph, points = graphs[len(graphs) // 2]
        draw_ranks(scatter, points)
        scatter.set_title(_shortened(f"{graph}: {value:.3f}"), loc="left")
    else:
        _say(scatter, "no predicted ranks")
    curves = [curve for curve in report.get("learning_curves", []) if curve["group"] == name]
    draw_learning(learning, curves) if curves else _say(learning, "no learning curve")


def _shortened(title: str) -> str:
    half = MAX_TITLE // 2
    return title if len(title) <= MAX_TITLE else f"{title[:half]}…{title[-half:]}"


def _say(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=FAINT)
