"""What each part of the pipeline gains: from the dataset's baseline to what `make run` does.

`make ladder` trains what is missing; `python -m benchmarks.accuracy.ladder --layouts runs/accuracy
--tiles runs/tile-accuracy` alone writes ladder.md and tile_ladder.md below docs/results, with a
picture each, from what is there; a page whose cells are not there stays as it is.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import PAGES, table
from benchmarks.accuracy.table import (
    SCORE,
    TAU,
    Cell,
    Estimate,
    by_contender,
    difference,
    estimate_of,
    made_with,
    read_cells,
    text_of,
)
from common.atomic import atomic_path, write_text
from common.bootstrap import CONFIDENCE, DRAWS
from common.errors import PipelineError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS, WIDTH_INCHES, ROW_INCHES, DPI = 2, 11.0, 2.7, 110  # of a picture's panels


@dataclass(frozen=True)
class Page:
    """Ladders of one kind of config, from the cells that another page lists.

    Attributes:
        rungs: titles by the name of the cells, lowest first; each has all that stands above it from
            "one network" on.
        ladders: what is held out, in a few words, by task.
    """

    name: str
    cells_of: str
    metric: str
    rungs: Mapping[str, str]
    ladders: Mapping[str, str]


LAYOUT_PAGE = Page(
    "ladder",
    "layout_accuracy.md",
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
TILE_PAGE = Page(
    "tile_ladder",
    "tile_accuracy.md",
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


def rungs_of(page: Page, cells: Sequence[Cell]) -> list[Rung]:
    """Measure the rungs that have cells among those of one task, lowest first."""
    found = by_contender(cells, page.rungs)
    names = list(found)
    return [
        Rung(
            page.rungs[name],
            len(found[name]),
            estimate_of(found[name], page.metric),
            difference(found[name], found[names[place - 1]], page.metric) if place else None,
            difference(found[names[-1]], found[name], page.metric) if name != names[-1] else None,
        )
        for place, name in enumerate(names)
    ]


def report(page: Page, measured: Mapping[str, Sequence[Rung]], cells: Sequence[Cell]) -> str:
    """Return the whole page, from rungs by the title of their ladder."""
    lines = [
        f"""# The ladder: what each part gains

Written by `python -m benchmarks.accuracy.ladder` (`make ladder` also trains what is missing) from
the cells of {page.cells_of}, where the tasks are explained. The dataset's baseline and boosting
stand alone; `one network` begins anew, and each rung after it adds to it. The last one is what the
recipe `cpu` does, which `make run` uses; for further configs of one graph (`unet3d`) it is the
network of `within_graph` blended with its trees.

Brackets: {CONFIDENCE:.0%} intervals by bootstrap over families of graphs and seeds
({DRAWS:,} draws), or Student's over seeds where there is one graph. `gain` is over the rung above
in the table, `top` what the last rung has more than this one, both paired by graph and seed;
**bold** where the interval leaves out 0, as computed before rounding.

![The rungs with their intervals]({page.name}.png)
"""
    ]
    for title, rungs in measured.items():
        rows = []
        for rung in rungs:
            changes = [_change(found, page.metric) for found in (rung.gain, rung.to_top)]
            rows.append([rung.title, f"{rung.n_seeds}", text_of(rung.value, page.metric), *changes])
        lines += [f"## {title}", "", *table(["rung", "seeds", "value", "gain", "top"], rows), ""]
    return "\n".join([*lines, made_with(cells), ""])


def _change(found: Estimate | None, metric: str) -> str:
    text = text_of(found, metric, signed=True)
    return f"**{text}**" if found and (found.low > 0 or found.high < 0) else text


def write_page(page: Page, cells: Sequence[Cell], folder: Path) -> Path:
    """Write a page and its picture from the cells of its ladders; return the page's path.

    Raises:
        PipelineError: a file cannot be written.
    """
    used = [c for c in cells if c["task"] in page.ladders and c["contender"] in page.rungs]
    measured = {
        title: rungs
        for task, title in page.ladders.items()
        if (rungs := rungs_of(page, [cell for cell in used if cell["task"] == task]))
    }
    draw_ladders(measured, folder / f"{page.name}.png")
    path = folder / f"{page.name}.md"
    write_text(path, report(page, measured, used))
    return path


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages whose cells are there, with their pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=Path, default=Path("runs/accuracy"), metavar="DIR")
    parser.add_argument("--tiles", type=Path, default=Path("runs/tile-accuracy"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=PAGES, metavar="DIR", help="for the pages")
    options = parser.parse_args(arguments)
    n_written = 0
    for page, folder in ((LAYOUT_PAGE, options.layouts), (TILE_PAGE, options.tiles)):
        try:
            print(write_page(page, read_cells(folder / "cells"), options.out))  # noqa: T201
            n_written += 1
        except PipelineError as error:
            print(error, file=sys.stderr)  # noqa: T201
    return 0 if n_written else 1


if __name__ == "__main__":
    sys.exit(main())
