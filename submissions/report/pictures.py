"""A report's scores by matplotlib, as PNG."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAINT, OURS, FLOOR, CEILING = "#5b6672", "#1f6feb", "#c4432b", "#2c974b"
SIZE_INCHES, DPI = (11.0, 3.0), 110
# Where the axes are: to have matplotlib find a place takes five times as long as to draw.
PLACE = (0.17, 0.27, 0.8, 0.52)
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


def _draw_scores(axes: "Axes", judged: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw each collection's value, with its interval, floor and noise ceiling if known."""
    for row, part in enumerate(judged.values()):
        low, high = part["ci95"] or (part["value"], part["value"])
        axes.plot(
            [low, high], [row, row], color=OURS, linewidth=5, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot(part["value"], row, "o", color=OURS, markersize=7)
        for key, colour in (("floor", FLOOR), ("noise_ceiling", CEILING)):
            if part.get(key) is not None:
                axes.plot(part[key], row, "|", color=colour, markersize=14, markeredgewidth=2)
    labels = ("this run, 95 % interval", "floor: no training", "noise ceiling")
    for colour, mark, label in zip((OURS, FLOOR, CEILING), "o||", labels, strict=True):
        axes.plot([], [], mark, color=colour, label=label, markersize=8, markeredgewidth=2)
    axes.set_yticks(range(len(judged)), list(judged))
    axes.set_ylim(len(judged) - 0.4, -0.6)
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), 1.02)  # alike on every sheet
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    axes.set_title("Score by collection (1 is perfect)", loc="left")


def write_overview(report: Mapping[str, Any], path: Path) -> None:
    """Write the scores of a report as a picture.

    Raises:
        PipelineError: the file cannot be written.
    """
    judged = {n: p for n, p in report.get("collections", {}).items() if p["value"] is not None}
    known = {key: report[key] for key in ("recipe", "score", "revision") if report.get(key)}
    known = {key: f"{v:.4f}" if key == "score" else v for key, v in known.items()}
    heading = ", ".join(f"{key} {value}" for key, value in known.items())
    with picture(path, SIZE_INCHES) as figure:
        figure.suptitle(heading, fontsize=11, fontweight="bold", x=0.01, ha="left")
        axes = figure.add_axes(PLACE)
        if judged:
            _draw_scores(axes, judged)
        else:
            axes.set_axis_off()
            axes.text(0, 0.5, "No collection has been judged by measured runtimes.", color=FAINT)
