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

from benchmarks import PAGES
from benchmarks.accuracy.intervals import Estimate
from benchmarks.accuracy.ladder_picture import draw_ladder
from benchmarks.accuracy.table import (
    TAU,
    Cell,
    by_contender,
    difference,
    estimate_of,
    made_with,
    paired,
    read_cells,
    row,
    text_of,
)
from benchmarks.accuracy.tile_table import SCORE
from common.atomic import write_text
from common.bootstrap import CONFIDENCE, DRAWS
from common.errors import PipelineError

# By the name of the cells; each of them has all that stands above it from "one network" on.
LAYOUT_RUNGS = {
    "gcn": "dataset's GCN",
    "boosting": "boosting",
    "plain": "one network",
    "zero-padding": "+ attention across configs",
    "ours": "+ restored padding",
    "two-seeds": "+ two seeds",
    "blend": "+ blend with boosting",
}
TILE_RUNGS = {
    "early-fusion": "dataset's early fusion",
    "boosting": "boosting",
    "no-attention": "one network",
    "late-fusion": "+ attention across configs",
    "best-first": "+ blend of three rankers",
    "ours": "+ spread picks",
}


@dataclass(frozen=True)
class Ladder:
    """One task's rungs, lowest first.

    Attributes:
        task: of the cells.
        title: what is held out, in a few words.
        metric: of a graph.
        rungs: titles by the name of the cells.
    """

    task: str
    title: str
    metric: str
    rungs: Mapping[str, str]


LAYOUT_LADDERS = (
    Ladder("sample-folds", "Sample: layouts of unseen families (tau)", TAU, LAYOUT_RUNGS),
    Ladder("unet3d-all", "TPU: unseen configs of unet3d, of 545 (tau)", TAU, LAYOUT_RUNGS),
    Ladder("unet3d-100", "TPU: unseen configs of unet3d, of 100 (tau)", TAU, LAYOUT_RUNGS),
    Ladder("cross-graph", "TPU: from unet3d to unet_3d.4x4.bf16 (tau)", TAU, LAYOUT_RUNGS),
)
TILE_LADDERS = (
    Ladder(
        "sample", "Sample: kernels of the valid split's families (tile score)", SCORE, TILE_RUNGS
    ),
    Ladder("sample-folds", "Sample: kernels of unseen families (tile score)", SCORE, TILE_RUNGS),
    Ladder("alexnet", "TPU: alexnet's kernels, learned on a CPU (tile score)", SCORE, TILE_RUNGS),
)


@dataclass(frozen=True)
class Page:
    """Ladders of one kind of config.

    Attributes:
        name: of the page and the picture.
        cells_of: the page that lists the cells and explains the tasks.
        top: what the last rung is.
        ladders: in order.
    """

    name: str
    cells_of: str
    top: Sequence[str]
    ladders: Sequence[Ladder]

    @property
    def picture(self) -> str:
        """Return the name of the picture."""
        return f"{self.name}.png"


LAYOUT_PAGE = Page(
    "ladder",
    "layout_accuracy.md",
    (
        "The last one is what the recipe `cpu` does, which `make run` uses; for further configs",
        "of one graph (`unet3d`) it is the network of `within_graph` blended with its trees.",
    ),
    LAYOUT_LADDERS,
)
TILE_PAGE = Page(
    "tile_ladder",
    "tile_accuracy.md",
    ("The last one is what the recipe `cpu` does, which `make run` uses.",),
    TILE_LADDERS,
)


@dataclass(frozen=True)
class Rung:
    """One rung as it was measured; differences are paired by graph and seed.

    Attributes:
        title: what is added.
        n_seeds: trainings.
        value: the metric.
        gain: over the rung below; None for the lowest.
        to_top: what the highest rung has more; None for itself.
    """

    title: str
    n_seeds: int
    value: Estimate
    gain: Estimate | None
    to_top: Estimate | None


def cells_of(ladder: Ladder, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a ladder's rungs."""
    return [
        cell for cell in cells if cell["task"] == ladder.task and cell["contender"] in ladder.rungs
    ]


def rungs_of(ladder: Ladder, cells: Sequence[Cell]) -> list[Rung]:
    """Measure the rungs of a ladder that have cells among its own, lowest first."""
    mine = by_contender(cells, ladder.rungs)
    present = list(mine)

    def less(name: str, other: str) -> Estimate:
        return difference(*paired(mine[name], mine[other]), ladder.metric)

    return [
        Rung(
            ladder.rungs[name],
            len(mine[name]),
            estimate_of(mine[name], ladder.metric),
            less(name, present[place - 1]) if place else None,
            less(present[-1], name) if name != present[-1] else None,
        )
        for place, name in enumerate(present)
    ]


def report(
    page: Page, measured: Sequence[tuple[Ladder, Sequence[Rung]]], cells: Sequence[Cell]
) -> list[str]:
    """Return the whole page."""
    lines = [
        "# The ladder: what each part gains",
        "",
        "Written by `python -m benchmarks.accuracy.ladder` (`make ladder` also trains what is",
        f"missing) from the cells of {page.cells_of}, where the tasks are explained. The",
        "dataset's baseline and boosting stand alone; `one network` begins anew, and each rung",
        "after it adds to it.",
        *page.top,
        "",
        f"Brackets: {CONFIDENCE:.0%} intervals by bootstrap over families of graphs and seeds",
        f"({DRAWS:,} draws), or Student's over seeds where there is one family, whose graphs are",
        "then not drawn. `gain` is over the rung above in the table, `top` what the last rung has",
        "more than this one, both paired by graph and seed; **bold** where the interval leaves out",
        "0, as computed before rounding.",
        "",
        f"![The rungs with their intervals]({page.picture})",
        "",
    ]
    for ladder, rungs in measured:
        lines += [f"## {ladder.title}", "", *_table(ladder, rungs), ""]
    return [*lines, *made_with(cells)]


def _table(ladder: Ladder, rungs: Sequence[Rung]) -> list[str]:
    lines = [row(["rung", "seeds", "value", "gain", "top"]), "|---|---:|---|---|---|"]
    for rung in rungs:
        changes = [_change(found, ladder.metric) for found in (rung.gain, rung.to_top)]
        value = text_of(rung.value, ladder.metric)
        lines.append(row([rung.title, str(rung.n_seeds), value, *changes]))
    return lines


def _change(found: Estimate | None, metric: str) -> str:
    if found is None:
        return ""
    text = text_of(found, metric, signed=True)
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def write_page(page: Page, cells: Sequence[Cell], folder: Path) -> Path:
    """Write a page and its picture from the cells of its ladders; return the page's path.

    Raises:
        PipelineError: a file cannot be written.
    """
    mine = [(ladder, cells_of(ladder, cells)) for ladder in page.ladders]
    measured = [(ladder, rungs_of(ladder, own)) for ladder, own in mine if own]
    panels = {
        ladder.title: [(rung.title, rung.value) for rung in rungs] for ladder, rungs in measured
    }
    draw_ladder(panels, folder / page.picture)
    path = folder / f"{page.name}.md"
    used = [cell for _, own in mine for cell in own]
    write_text(path, "\n".join(report(page, measured, used)) + "\n")
    return path


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
