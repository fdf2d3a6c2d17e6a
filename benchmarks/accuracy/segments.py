"""What Graph Segment Training gains and costs: beside whole graphs, and without each of its parts.

`python -m benchmarks.accuracy.segments --out runs/segments` trains what is missing, and writes
docs/results/segments.md from all that is there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import PAGES, errors_in_one_line, render, write_page
from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.report import made_with, read_cells, table_of
from benchmarks.accuracy.tasks import TASKS, Sources, options_parser, why_no_data
from common.atomic import alone_in
from common.errors import PipelineError
from common.metrics import CONFIDENCE, DRAWS

RECIPE, WHOLE = "segments", "whole"
STEPS = 200
# Nodes of a segment: the median graph of the sample, of 200 nodes, has four such, and unet3d seven.
SEGMENT_NODES = {"layouts": 50, "unet3d-all": 400}
# Keys of [segment_sage] in which a variant differs from the recipe.
VARIANTS = {
    WHOLE: ("segment_nodes=1000000",),
    RECIPE: (),
    "fresh": ("history=false", "keep_stale=1"),
    "alone": ("keep_stale=0",),
    "no-dropout": ("keep_stale=1",),
    "no-head": ("head_steps=0",),
}
# Shares of the steps, each trained to its end, that show how soon a network ranks well.
SHARES: dict[str, dict[str, tuple[float, ...]]] = {
    "layouts": {WHOLE: (0.5,), RECIPE: (0.5, 1.5)},
    "unet3d-all": {WHOLE: (0.25, 0.5), RECIPE: (0.5, 2, 4)},
}


def trained(task: str) -> dict[str, tuple[str, ...]]:
    """Return the keys of [segment_sage], by name, of all that is trained for a task."""
    base = f"segment_nodes={SEGMENT_NODES[task]}", f"training.steps={STEPS}"
    found = {name: (*base, *keys) for name, keys in VARIANTS.items()}
    for name, shares in SHARES[task].items():
        for share in shares:
            steps = f"training.steps={round(share * STEPS)}"
            found[f"{name}-{share:.0%}"] = (*found[name], steps)
    return found


def run(options: argparse.Namespace) -> None:
    """Train what is missing, each name into its folder."""
    sources = Sources(options.sample, options.real)
    for seed in options.seeds:
        for task in (task for task in options.tasks if not why_no_data(TASKS[task], sources)):
            for name, keys in trained(task).items():
                changed = (*options.set, *(f"segment_sage.{key}" for key in keys))
                is_new = run_cell(
                    Cell(task, RECIPE, seed, changed), sources, options.out / task / name
                )
                print(task, name, seed, "trained" if is_new else "was there", flush=True)  # noqa: T201


def write_report(out: Path, folder: Path) -> None:
    """Write segments.md.

    Raises:
        PipelineError: something was not trained, or a file cannot be written.
    """
    by_task = {
        task: {name: read_cells(out / task / name / "cells") for name in trained(task)}
        for task in SEGMENT_NODES
        if (out / task).is_dir()
    }
    cells = [cell for found in by_task.values() for own in found.values() for cell in own]
    if not cells:
        raise PipelineError(f"{out}: no results; expected some of {', '.join(SEGMENT_NODES)}")
    parts = [
        table_of(task, found, RECIPE) | {"segment_nodes": SEGMENT_NODES[task]}
        for task, found in by_task.items()
    ]
    made = {"made_with": made_with(cells), "confidence": f"{CONFIDENCE:.0%}", "draws": f"{DRAWS:,}"}
    write_page(folder / "segments.md", render("segments", parts=parts, steps=STEPS, **made))


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, and write the page."""
    parser = options_parser(__doc__, list(SEGMENT_NODES), n_seeds=3)
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    with alone_in(options.out):
        run(options)
    write_report(options.out, options.pages)


if __name__ == "__main__":
    main()
