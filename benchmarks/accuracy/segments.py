"""What Graph Segment Training gains and costs: beside whole graphs, and without each of its parts.

`python -m benchmarks.accuracy.segments --out runs/segments` trains what is missing, and writes
docs/results/segments.md and its picture from all that is there.
"""

import argparse
import os
import sys
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
from benchmarks.accuracy.tasks import TASKS, Sources, why_no_data
from common.atomic import atomic_path
from common.bootstrap import CONFIDENCE, DRAWS
from common.errors import PipelineError
from common.settings import SAMPLE
from models.config.recipe import load_recipe

SHIPPED, WHOLE = "segments", "whole"
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
# Shares of the recipe's steps, each trained to its end, that show how soon a network ranks well.
SHARES = {WHOLE: (0.5,), SHIPPED: (0.5, 1.5)}
METRICS = (TAU, "slowdown@1", "slowdown@5")
PICTURE, SIZE_INCHES, DPI = "segments.png", (10.0, 3.8), 110

Cells = Mapping[str, list[dict[str, Any]]]  # by name of what was trained, each seed's


def trained(steps: int) -> dict[str, tuple[str, ...]]:
    """Return the keys of [segment_sage] that differ, by name, of all that is trained for a task."""
    found = dict(VARIANTS)
    for name, shares in SHARES.items():
        for share in shares:
            found[_rung(name, share)] = (*found[name], f"training.steps={round(share * steps)}")
    return found


def _rung(name: str, share: float) -> str:
    return name if share == 1 else f"{name}-{share:.0%}"


def run(
    tasks: Sequence[str], seeds: Sequence[int], sources: Sources, out: Path, changes: Sequence[str]
) -> None:
    """Train what is missing, each name into its folder; `changes` are keys of [segment_sage]."""
    shipped = load_recipe(SHIPPED, [f"segment_sage.{key}" for key in changes])
    names = trained(shipped.segment_sage.training.steps)
    for seed in seeds:
        for task in tasks:
            for name, keys in names.items():
                own = (f"segment_nodes={SEGMENT_NODES[task]}", *changes, *keys)
                cell = Cell(task, SHIPPED, seed, tuple(f"segment_sage.{key}" for key in own))
                is_new = run_cell(cell, sources, out / name)
                print(task, name, seed, "trained" if is_new else "was there", flush=True)  # noqa: T201


def write_report(out: Path, folder: Path) -> None:
    """Write segments.md and its picture.

    Raises:
        PipelineError: something was not trained, or a file cannot be written.
    """
    every = {name: read_cells(out / name / "cells") for name in trained(steps=0)}
    by_task = {
        task: {name: [c for c in cells if c["task"] == task] for name, cells in every.items()}
        for task in SEGMENT_NODES
    }
    by_task = {task: found for task, found in by_task.items() if all(found.values())}
    draw(by_task, folder / PICTURE)
    parts = [part_of(task, found) for task, found in by_task.items()]
    text = render(
        "segments",
        parts=parts,
        picture=PICTURE,
        steps=every[SHIPPED][0]["recipe"]["segment_sage"]["training"]["steps"],
        confidence=f"{CONFIDENCE:.0%}",
        draws=f"{DRAWS:,}",
        made_with=made_with([cell for cells in every.values() for cell in cells]),
    )
    write_page(folder / "segments.md", text)


def part_of(task: str, cells: Cells) -> dict[str, Any]:
    """Return what one task has shown: a row per variant, and how soon whole graphs are equalled."""
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
        "soon": [soon(name, cells) for name in SHARES],
        "soon_header": [
            "network",
            *(f"{share:.0%}" for share in sorted({1.0, *SHARES[SHIPPED]})),
            "gets there",
            f"after this share of {WHOLE}'s CPU s",
        ],
    }


def curve(name: str, cells: Cells) -> list[tuple[float, float]]:
    """Return CPU seconds and tau, means over seeds, of each share of the steps that was trained."""
    rungs = [cells[_rung(name, share)] for share in sorted({1.0, *SHARES[name]})]
    return [(_cpu_s(own), estimate_of(own, TAU).mean) for own in rungs]


def soon(name: str, cells: Cells) -> list[str]:
    """Return the row on when a network first ranks as well as whole graphs at their last step."""
    found = curve(name, cells)
    goal_s, goal = curve(WHOLE, cells)[-1]
    reached = first_reached(found, goal)
    texts = [f"{tau:.3f} ({cpu_s:,.0f} s)" for cpu_s, tau in found]
    texts += [""] * (1 + len(SHARES[SHIPPED]) - len(texts))
    ends = ["no", ""] if reached is None else ["yes", f"{reached / goal_s:.2f}"]
    return [name, *texts, *ends]


def first_reached(found: Sequence[tuple[float, float]], goal: float) -> float | None:
    """Return the seconds at which tau is `goal`, on lines between the points; None if it never is.

    Args:
        found: seconds, ascending, and tau; nothing is known before the first.
    """
    for number, (seconds, tau) in enumerate(found):
        if tau >= goal:
            if number == 0:
                return seconds
            before_s, before = found[number - 1]
            return before_s + (seconds - before_s) * (goal - before) / (tau - before)
    return None


def _cpu_s(cells: Sequence[dict[str, Any]]) -> float:
    return float(np.mean([cell["train_cpu_s"] for cell in cells]))


def draw(by_task: Mapping[str, Cells], path: Path) -> None:
    """Draw tau by CPU seconds, a panel for each task: two curves, and the other variants."""
    from matplotlib import rc_context

    from submissions.report.pictures import FAINT, FLOOR, OURS, STYLE, new_figure

    with rc_context(STYLE):
        figure = new_figure(SIZE_INCHES)
        for number, (task, cells) in enumerate(by_task.items()):
            axes = figure.add_axes((0.07 + 0.5 * number, 0.14, 0.41, 0.74))
            for name, colour in ((WHOLE, FLOOR), (SHIPPED, OURS)):
                seconds, taus = zip(*curve(name, cells), strict=True)
                axes.plot(seconds, taus, "o-", color=colour, label=name)
            for name in VARIANTS.keys() - SHARES.keys():
                place = _cpu_s(cells[name]), estimate_of(cells[name], TAU).mean
                axes.plot(*place, "x", color=FAINT)
                axes.annotate(name, place, xytext=(4, 3), textcoords="offset points", color=FAINT)
            axes.set_xlabel("CPU seconds of training")
            axes.set_title(f"{TASKS[task].title} (tau)", loc="right")
            axes.legend(loc="lower right")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    real = os.environ.get("TPUGRAPHS_REAL")
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    known = list(SEGMENT_NODES)
    parser.add_argument("--tasks", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--real", type=Path, default=Path(real) if real else None, metavar="DIR")
    parser.add_argument("--sample", type=Path, default=SAMPLE, metavar="DIR")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    sources = Sources(options.sample, options.real)
    try:
        tasks = [task for task in options.tasks if not why_no_data(TASKS[task], sources)]
        run(tasks, options.seeds, sources, options.out, options.set)
        write_report(options.out, options.pages)
    except PipelineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
