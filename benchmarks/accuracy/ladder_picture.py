"""The ladder as a picture: a panel for each task, a row for each rung, lowest rung on top."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.accuracy.intervals import Estimate
from common.atomic import atomic_path
from submissions.report.plots import FAINT, OURS
from submissions.report.svg import STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 2
WIDTH_INCHES, ROW_INCHES, DPI = 11.0, 2.7, 110
Panel = Sequence[tuple[str, Estimate]]


def draw_ladder(panels: Mapping[str, Panel], path: Path) -> None:
    """Draw each panel's rungs, a title and an estimate each, with intervals.

    Raises:
        PipelineError: the file cannot be written.
    """
    from matplotlib import rc_context

    n_rows = -(-len(panels) // COLUMNS)
    with rc_context(STYLE):
        figure = new_figure((WIDTH_INCHES, ROW_INCHES * n_rows))
        height = 1 / n_rows
        for number, (title, rungs) in enumerate(panels.items()):
            line, column = divmod(number, COLUMNS)
            left, bottom = 0.2 + 0.5 * column, 1 - (line + 0.87) * height
            axes = figure.add_axes((left, bottom, 0.27, 0.72 * height))
            draw_rungs(axes, rungs)
            axes.set_title(title, loc="right")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def draw_rungs(axes: "Axes", rungs: Panel) -> None:
    """Draw one panel; what the last rung scores runs through it as a line."""
    axes.axvline(rungs[-1][1].mean, color=FAINT, linewidth=0.8, linestyle="--")
    for place, (_, found) in enumerate(rungs):
        axes.plot(
            [found.low, found.high],
            [place, place],
            color=OURS,
            linewidth=5,
            alpha=0.35,
            solid_capstyle="butt",
        )
        axes.plot(found.mean, place, "o", color=OURS, markersize=6)
    axes.set_yticks(range(len(rungs)), [title for title, _ in rungs])
    axes.set_ylim(len(rungs) - 0.4, -0.6)
