"""The reports on accuracy: Markdown tables from the cells' JSON files, and from nothing else."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks import render
from benchmarks.accuracy.cells import CONTENDERS
from benchmarks.accuracy.tasks import TASKS
from common.bootstrap import CONFIDENCE, DRAWS, family_means, interval_of
from common.errors import PipelineError

Cell = dict[str, Any]
OURS, TAU, SCORE = "ours", "kendall_tau", "tile_score"
LABELS = {
    "layout": {
        TAU: "tau",
        "slowdown@1": "slowdown@1",
        "slowdown@5": "@5",
        "slowdown@10": "@10",
    },
    "tile": {
        SCORE: "tile score",
        "top1_error": "error@1",
        "top5_error": "@5",
        "top10_error": "@10",
        TAU: "tau",
    },
}


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; no interval (nan) where there is nothing to tell it from."""

    mean: float
    low: float = math.nan
    high: float = math.nan


def estimate(values: NDArray[np.float64], families: Sequence[str]) -> Estimate:
    """Average over graphs and seeds, families and seeds drawn; of one graph, over seeds alone.

    Args:
        values: (g, s) one number per graph and seed.
        families: g names; graphs of one family vary together.
    """
    mean, n_seeds = float(values.mean()), values.shape[1]
    if len(values) == 1 and n_seeds > 1:
        quantile = student.ppf((1 + CONFIDENCE) / 2, n_seeds - 1)
        half = float(quantile * values.std(ddof=1) / math.sqrt(n_seeds))
        return Estimate(mean, mean - half, mean + half)
    if len(set(families)) * n_seeds < 2:
        return Estimate(mean)
    return Estimate(mean, *interval_of(family_means(values, families)))


def values(cells: Sequence[Cell], metric: str) -> tuple[NDArray[np.float64], list[str]]:
    """Return one metric as (g, s), and g families, of the graphs that all s cells judge."""
    names = sorted(set.intersection(*(set(cell["graphs"]) for cell in cells)))
    found = [[cell["graphs"][name][metric] for cell in cells] for name in names]
    families = [cells[0]["graphs"][name]["family"] for name in names]
    return np.asarray(found, dtype=np.float64), families


def estimate_of(cells: Sequence[Cell], metric: str) -> Estimate:
    """Average a metric of one contender's cells."""
    return estimate(*values(cells, metric))


def difference(cells: Sequence[Cell], others: Sequence[Cell], metric: str) -> Estimate | None:
    """Average what cells have more than others, paired by seed; None if they share none."""
    by_seed = {cell["seed"]: cell for cell in others}
    mine = [cell for cell in cells if cell["seed"] in by_seed]
    if not mine:
        return None
    both, families = values([*mine, *(by_seed[cell["seed"]] for cell in mine)], metric)
    return estimate(both[:, : len(mine)] - both[:, len(mine) :], families)


def by_contender(cells: Sequence[Cell], known: Collection[str]) -> dict[str, list[Cell]]:
    """Return the cells by seed of each contender that has some, in the order of `known`."""
    ordered = sorted(cells, key=lambda cell: cell["seed"])
    found = {name: [cell for cell in ordered if cell["contender"] == name] for name in known}
    return {name: own for name, own in found.items() if own}


def read_cells(folder: Path) -> list[Cell]:
    """Read every cell of a folder, by name.

    Raises:
        PipelineError: there is none.
    """
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    if not cells:
        raise PipelineError(f"{folder}: no results; run without --report first")
    return cells


def report(kind: str, cells: Sequence[Cell]) -> str:
    """Return the page on models of a kind, "layout" or "tile"."""
    parts = []
    for task, known in TASKS[kind].items():
        own = [cell for cell in cells if cell["task"] == task]
        if by_name := by_contender(own, CONTENDERS[kind]):
            parts.append({"task": task, "note": known.note, **section(kind, by_name)})
    header = ["model", "seeds", *LABELS[kind].values(), "CPU s", "wall s"]
    made = {"made_with": made_with(cells), "confidence": f"{CONFIDENCE:.0%}", "draws": f"{DRAWS:,}"}
    return render("accuracy", kind=kind, parts=parts, header=header, **made)


def section(kind: str, by_name: dict[str, list[Cell]]) -> dict[str, Any]:
    """Return what one task has shown: a row per contender, and one per paired difference to ours.

    Args:
        by_name: cells by contender.
    """
    labels = LABELS[kind]
    rows = []
    for name, own in by_name.items():
        costs = [f"{np.mean([cell[key] for cell in own]):,.1f}" for key in ("cpu_s", "wall_s")]
        texts = [text_of(estimate_of(own, metric), metric) for metric in labels]
        rows.append([name, f"{len(own)}", *texts, *costs])
    for name, own in by_name.items():
        gains = [difference(own, by_name.get(OURS, []), metric) for metric in labels]
        if name != OURS and None not in gains:
            texts = list(map(text_of, gains, labels, [True] * len(labels)))
            rows.append([f"{name} − ours", "", *texts, "", ""])
    cells = next(iter(by_name.values()))
    graphs = cells[0]["graphs"].values()
    again = [graph["again_tau"] for graph in graphs if graph["again_tau"]]
    noise = [g["noise"] for cell in cells for g in cell["graphs"].values() if g.get("noise")]
    return {
        "rows": rows,
        "n_graphs": len(graphs),
        "n_families": len({graph["family"] for graph in graphs}),
        "again": {"tau": np.mean(again), "count": len(again)} if again else None,
        "noise": noise and {key: np.mean([found[key] for found in noise]) for key in noise[0]},
    }


def made_with(cells: Sequence[Cell]) -> str:
    """Say where the cells come from."""
    revisions = sorted({str(cell["revision"]) for cell in cells})
    systems = sorted({cell["environment"]["system"] for cell in cells})
    return f"Made on {', '.join(systems)}; revisions {', '.join(revisions)}."


def text_of(found: Estimate | None, metric: str = TAU, signed: bool = False) -> str:
    """Write a mean with its interval: three digits of a tau, four of all else; "" for None."""
    if found is None:
        return ""
    form = f"{'+' if signed else ''}.{3 if metric == TAU else 4}f"
    if math.isnan(found.low):
        return f"{found.mean:{form}}"
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"
