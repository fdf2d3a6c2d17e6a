"""What the report's pictures show, each drawn on the axes it is given: nothing here makes files."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from submissions.report.curves import CURVE_PICKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, OURS, FLOOR, CEILING = "#1b1f24", "#8a949e", "#1f6feb", "#c4432b", "#2c974b"
MARKS = 4.5


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
