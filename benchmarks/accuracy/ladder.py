"""What each part of the pipeline gains: from the dataset's baseline to what `make run` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import render, write_page
from benchmarks.accuracy.table import (
    SCORE,
    TAU,
    Cell,
    Estimate,
    by_contender,
    difference,
    estimate_of,
    made_with,
    text_of,
)
from common.atomic import atomic_path
from common.bootstrap import CONFIDENCE, DRAWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS, WIDTH_INCHES, ROW_INCHES, DPI = 2, 11.0, 2.7, 110  # of a picture's panels


@dataclass(frozen=True)
class Ladders:
    """Ladders of one kind of config, and the page on them."""

    page: str
    metric: str
    # Titles by the name of the cells, lowest first; each has all above it from "one network" on.
    rungs: Mapping[str, str]
    ladders: Mapping[str, str]  # what is held out, in a few words, by task


LAYOUT_LADDERS = Ladders(
    "ladder",
    TAU,
    {
        "gcn": "dataset's GCN",
        "boosting": "boosting",
        "plain": "one network",
        "zero-padding": "+ attention across configs",
        "ours": "+ restored padding",
        "two-seeds": "+ two seeds",
        "blend": "+ blend with boosting",
    },
    {
        "sample-folds": "Sample: layouts of unseen families (tau)",
        "unet3d-all": "TPU: unseen configs of unet3d, of 545 (tau)",
        "unet3d-100": "TPU: unseen configs of unet3d, of 100 (tau)",
        "cross-graph": "TPU: from unet3d to unet_3d.4x4.bf16 (tau)",
    },
)
TILE_LADDERS = Ladders(
    "tile_ladder",
    SCORE,
    {
        "early-fusion": "dataset's early fusion",
        "boosting": "boosting",
        "no-attention": "one network",
        "late-fusion": "+ attention across configs",
        "best-first": "+ blend of three rankers",
        "ours": "+ spread picks",
    },
    {
        "sample": "Sample: kernels of the valid split's families (tile score)",
        "sample-folds": "Sample: kernels of unseen families (tile score)",
        "alexnet": "TPU: alexnet's kernels, learned on a CPU (tile score)",
    },
)
LADDERS = {"layout": LAYOUT_LADDERS, "tile": TILE_LADDERS}


@dataclass(frozen=True)
class Rung:
    """One rung as it was measured: its gain over the one below, and what the highest has more.

    Differences are paired by graph and seed; None where there is no other rung.
    """

    title: str
    n_seeds: int
    value: Estimate
    gain: Estimate | None
    to_top: Estimate | None


def rungs_of(ladders: Ladders, cells: Sequence[Cell]) -> list[Rung]:
    """Measure the rungs that have cells among those of one task, lowest first."""
    found, metric = by_contender(cells, ladders.rungs), ladders.metric
    names = list(found)
    return [
        Rung(
            ladders.rungs[name],
            len(found[name]),
            estimate_of(found[name], metric),
            difference(found[name], found[names[place - 1]], metric) if place else None,
            difference(found[names[-1]], found[name], metric) if name != names[-1] else None,
        )
        for place, name in enumerate(names)
    ]


def write_ladders(kind: str, cells: Sequence[Cell], folder: Path) -> None:
    """Write the page and the picture of what has cells on a ladder; nothing if none has.

    Raises:
        PipelineError: a file cannot be written.
    """
    ladders = LADDERS[kind]
    used = [c for c in cells if c["task"] in ladders.ladders and c["contender"] in ladders.rungs]
    if not used:
        return
    measured = {
        title: rungs
        for task, title in ladders.ladders.items()
        if (rungs := rungs_of(ladders, [cell for cell in used if cell["task"] == task]))
    }
    draw_ladders(measured, folder / f"{ladders.page}.png")
    rows_of = {title: [_row(rung, ladders.metric) for rung in r] for title, r in measured.items()}
    made = {"made_with": made_with(used), "confidence": f"{CONFIDENCE:.0%}", "draws": f"{DRAWS:,}"}
    picture = f"{ladders.page}.png"
    text = render("ladder", kind=kind, picture=picture, rows_of=rows_of, **made)
    write_page(folder / f"{ladders.page}.md", text)


def _row(rung: Rung, metric: str) -> list[str]:
    changes = [_change(found, metric) for found in (rung.gain, rung.to_top)]
    return [rung.title, f"{rung.n_seeds}", text_of(rung.value, metric), *changes]


def _change(found: Estimate | None, metric: str) -> str:
    text = text_of(found, metric, signed=True)
    return f"**{text}**" if found and (found.low > 0 or found.high < 0) else text


def draw_ladders(measured: Mapping[str, Sequence[Rung]], path: Path) -> None:
    """Draw a panel for each ladder, a row for each rung, lowest on top."""
    from matplotlib import rc_context

    from submissions.report.pictures import STYLE, new_figure

    n_rows = -(-len(measured) // COLUMNS)
    with rc_context(STYLE):
        figure = new_figure((WIDTH_INCHES, ROW_INCHES * n_rows))
        for number, (title, rungs) in enumerate(measured.items()):
            line, column = divmod(number, COLUMNS)
            place = (0.2 + 0.5 * column, 1 - (line + 0.87) / n_rows, 0.27, 0.72 / n_rows)
            axes = figure.add_axes(place)
            draw_rungs(axes, rungs)
            axes.set_title(title, loc="right")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def draw_rungs(axes: "Axes", rungs: Sequence[Rung]) -> None:
    """Draw one panel; what the last rung scores runs through it as a line."""
    from submissions.report.pictures import FAINT, OURS

    axes.axvline(rungs[-1].value.mean, color=FAINT, linewidth=0.8, linestyle="--")
    for place, rung in enumerate(rungs):
        ends = [rung.value.low, rung.value.high]
        axes.plot(ends, [place] * 2, color=OURS, linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot(rung.value.mean, place, "o", color=OURS, markersize=6)
    axes.set_yticks(range(len(rungs)), [rung.title for rung in rungs])
    axes.set_ylim(len(rungs) - 0.4, -0.6)
