"""What Graph Segment Training gains and costs: beside whole graphs, and without each of its parts.

`python -m benchmarks.accuracy.segments --out runs/segments` trains what is missing, and writes
docs/results/segments.md and its picture from all that is there.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import PAGES, render, write_page
from benchmarks.accuracy.cells import Cell, run_cell
from benchmarks.accuracy.report import (
    LABELS,
    TAU,
    difference,
    estimate_of,
    lead_text,
    made_with,
    read_cells,
    text_of,
)
from benchmarks.accuracy.tasks import TASKS, Sources, options_parser, why_no_data
from common.bootstrap import CONFIDENCE, DRAWS
from common.errors import PipelineError
from submissions.report.pictures import FAINT, FLOOR, OURS, picture

SHIPPED, WHOLE = "segments", "whole"
STEPS = 200
# Nodes of a segment: the median graph of the sample, of 200 nodes, has four such, and unet3d seven.
SEGMENT_NODES = {"layouts": 50, "unet3d-all": 400}
# Keys of [segment_sage] in which a variant differs from the recipe.
VARIANTS = {
    WHOLE: ("segment_nodes=1000000",),
    SHIPPED: (),
    "fresh": ("history=false", "keep_stale=1"),
    "alone": ("keep_stale=0",),
    "no-dropout": ("keep_stale=1",),
    "no-head": ("head_steps=0",),
}
# Shares of the steps, each trained to its end, that show how soon a network ranks well.
SHARES: dict[str, dict[str, tuple[float, ...]]] = {
    "layouts": {WHOLE: (0.5, 1), SHIPPED: (0.5, 1, 1.5)},
    "unet3d-all": {WHOLE: (0.25, 0.5, 1), SHIPPED: (0.5, 1, 2, 4)},
}
METRICS = (TAU, "slowdown@1", "slowdown@5")
PICTURE, SIZE_INCHES = "segments.png", (10.0, 3.8)

Cells = Mapping[str, list[dict[str, Any]]]  # by name of what was trained, each seed's


def trained(task: str) -> dict[str, tuple[str, ...]]:
    """Return the keys of [segment_sage], by name, of all that is trained for a task."""
    base = f"segment_nodes={SEGMENT_NODES[task]}", f"training.steps={STEPS}"
    found = {name: (*base, *keys) for name, keys in VARIANTS.items()}
    for name, shares in SHARES[task].items():
        for share in shares:
            found[_rung(name, share)] = (*found[name], f"training.steps={round(share * STEPS)}")
    return found


def _rung(name: str, share: float) -> str:
    return name if share == 1 else f"{name}-{share:.0%}"


def run(options: argparse.Namespace) -> None:
    """Train what is missing, each name into its folder."""
    sources = Sources(options.sample, options.real)
    for seed in options.seeds:
        for task in (task for task in options.tasks if not why_no_data(TASKS[task], sources)):
            for name, keys in trained(task).items():
                changed = tuple(f"segment_sage.{key}" for key in (*options.set, *keys))
                is_new = run_cell(
                    Cell(task, SHIPPED, seed, changed), sources, options.out / task / name
                )
                print(task, name, seed, "trained" if is_new else "was there", flush=True)  # noqa: T201


def write_report(out: Path, folder: Path) -> None:
    """Write segments.md and its picture.

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
    draw(by_task, folder / PICTURE)
    parts = [part_of(task, found) for task, found in by_task.items()]
    text = render(
        "segments",
        parts=parts,
        picture=PICTURE,
        steps=STEPS,
        confidence=f"{CONFIDENCE:.0%}",
        draws=f"{DRAWS:,}",
        made_with=made_with(cells),
    )
    write_page(folder / "segments.md", text)


def part_of(task: str, cells: Cells) -> dict[str, Any]:
    """Return what one task has shown: a row per variant, and tau after shares of the steps."""
    labels = [LABELS["layout"][metric] for metric in METRICS]
    rows = []
    for name in VARIANTS:
        own = cells[name]
        texts = [text_of(estimate_of(own, metric), metric) for metric in METRICS]
        leads = [
            "" if name == SHIPPED else lead_text(difference(own, cells[SHIPPED], metric), metric)
            for metric in METRICS[:2]
        ]
        rows.append([name, f"{len(own)}", *texts, *leads, f"{_cpu_s(own):,.0f}"])
    graphs = cells[SHIPPED][0]["graphs"].values()
    leads_header = [f"it − {SHIPPED}: {label}" for label in labels[:2]]
    return {
        "title": TASKS[task].title,
        "segment_nodes": SEGMENT_NODES[task],
        "n_graphs": len(graphs),
        "n_families": len({graph["family"] for graph in graphs}),
        "rows": rows,
        "header": ["network", "seeds", *labels, *leads_header, "training CPU s"],
        "soon": [soon(task, name, cells) for name in SHARES[task]],
        "soon_header": ["network", *(f"{share:.0%}" for share in _shares(task))],
    }


def _shares(task: str) -> list[float]:
    return sorted({share for shares in SHARES[task].values() for share in shares})


def curve(task: str, name: str, cells: Cells) -> list[tuple[float, float]]:
    """Return CPU seconds and tau, means over seeds, of each share of the steps that was trained."""
    rungs = [cells[_rung(name, share)] for share in SHARES[task][name]]
    return [(_cpu_s(own), estimate_of(own, TAU).mean) for own in rungs]


def soon(task: str, name: str, cells: Cells) -> list[str]:
    """Return the row on how soon a network ranks how well."""
    by_share = dict(zip(SHARES[task][name], curve(task, name, cells), strict=True))
    points = [by_share.get(share) for share in _shares(task)]
    return [name, *(f"{point[1]:.3f} ({point[0]:,.0f} s)" if point else "" for point in points)]


def _cpu_s(cells: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([cell["train_cpu_s"] for cell in cells]))


def draw(by_task: Mapping[str, Cells], path: Path) -> None:
    """Draw tau by CPU seconds, a panel for each task: two curves, and the other variants."""
    with picture(path, SIZE_INCHES) as figure:
        for number, (task, cells) in enumerate(by_task.items()):
            axes = figure.add_axes((0.07 + 0.5 * number, 0.14, 0.41, 0.74))
            for name, colour in ((WHOLE, FLOOR), (SHIPPED, OURS)):
                seconds, taus = zip(*curve(task, name, cells), strict=True)
                axes.plot(seconds, taus, "o-", color=colour, label=name)
            for name in VARIANTS.keys() - SHARES[task].keys():
                place = _cpu_s(cells[name]), estimate_of(cells[name], TAU).mean
                axes.plot(*place, "x", color=FAINT)
                axes.annotate(name, place, xytext=(4, 3), textcoords="offset points", color=FAINT)
            axes.set_xlabel("CPU seconds of training")
            axes.set_title(f"{TASKS[task].title} (tau)", loc="right")
            axes.legend(loc="lower right")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, and write the page."""
    parser = options_parser(__doc__, list(SEGMENT_NODES), n_seeds=3)
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    run(options)
    write_report(options.out, options.pages)


if __name__ == "__main__":
    main()
