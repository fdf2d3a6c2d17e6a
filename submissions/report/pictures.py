"""The report's pictures: what each shows, and as text that a page can hold, SVG by matplotlib."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from submissions.report.curves import CURVE_PICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, OURS, FLOOR, CEILING = "#1b1f24", "#8a949e", "#1f6feb", "#c4432b", "#2c974b"
MARKS = 4.5
# Of a collection with more graphs, these many are drawn: the worst, the best, and evenly between.
MAX_SCATTERS = 12
# Fixed places: to have matplotlib find them takes five times as long as to draw.
AXES = (0.14, 0.15, 0.73, 0.82)  # left, bottom, width, height as shares of the picture
SIZE_INCHES = (4.4, 3.1)  # as wide as a phone: text stays readable where pictures stand alone
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
    """One picture of a page.

    Attributes:
        title: above it.
        told: what it shows, in words, for those who do not see it.
        address: "data:image/svg+xml;base64,…", the picture itself.
    """

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
    """Draw predicted rank against runtime for graphs of one collection, the worst first.

    Args:
        name: the collection.
        part: its entry in the report.
        ranks: columns of submissions.report.curves.RANKS_SCHEMA; None if there is no such file.
    """
    if ranks is None:
        return []
    own = ranks.filter(pl.col("collection") == name)
    pictures = []
    for value, graph in _spread(_by_score(part, own)):
        points = own.filter(pl.col("graph") == graph)
        told = f"predicted rank against runtime of {points.height} configs; {value:.3f}"
        pictures.append(picture(f"{graph}: {value:.3f}", told, partial(draw_ranks, points=points)))
    return pictures


def middle_graph(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> tuple[str, pl.DataFrame] | None:
    """Return the graph in the middle by score, and its points; None where there are none."""
    if ranks is None:
        return None
    own = ranks.filter(pl.col("collection") == name)
    graphs = _by_score(part, own)
    if not graphs:
        return None
    value, graph = graphs[len(graphs) // 2]
    return f"{graph}: {value:.3f}", own.filter(pl.col("graph") == graph)


def _by_score(part: Mapping[str, Any], points: pl.DataFrame) -> list[tuple[float, str]]:
    """List the graphs that have points with their scores, the worst first."""
    known, metric = set(points["graph"].unique()), part["metric"]
    return sorted(
        (found[metric], name) for name, found in part["per_graph"].items() if name in known
    )


def _spread(graphs: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    chosen = np.unique(np.linspace(0, len(graphs) - 1, min(len(graphs), MAX_SCATTERS)).round())
    return [graphs[int(i)] for i in chosen] if graphs else []


def learning_pictures(curves: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Draw the learning curves of one collection's models, one picture per collection and model."""
    pictures = []
    for (group, model), own in groupby(curves, key=_group_and_model):
        listed = list(own)
        last = ", ".join(f"{curve['member']} {curve['loss'][-1]:.3f}" for curve in listed)
        told = f"loss over steps; at the end: {last}"
        title = f"{group}: {model}" if group else model
        pictures.append(picture(title, told, partial(draw_learning, curves=listed)))
    return pictures


def _group_and_model(curve: Mapping[str, Any]) -> tuple[str, str]:
    return curve["group"], curve["member"].rsplit("-seed", 1)[0]


def draw_scores(axes: "Axes", collections: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw each judged collection's value, with its interval, floor and noise ceiling if known."""
    judged = {name: part for name, part in collections.items() if part["value"] is not None}
    for row, part in enumerate(judged.values()):
        low, high = part["ci95"] or (part["value"], part["value"])
        axes.plot(
            [low, high], [row, row], color=OURS, linewidth=5, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot(part["value"], row, "o", color=OURS, markersize=7)
        if part.get("floor") is not None:
            axes.plot(part["floor"], row, "|", color=FLOOR, markersize=14, markeredgewidth=2)
        if part.get("noise_ceiling") is not None:
            axes.plot(
                part["noise_ceiling"], row, "|", color=CEILING, markersize=14, markeredgewidth=2
            )
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
