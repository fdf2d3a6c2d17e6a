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

from benchmarks import table
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
        "slowdown@10": "@10",
        "slowdown@100": "@100",
    },
    "tile": {
        SCORE: "tile score",
        "top1_error": "error@1",
        "top5_error": "@5",
        "top10_error": "@10",
        TAU: "tau",
    },
}
HEADS = {
    "layout": """# How well layout models rank

Written by `python -m benchmarks.accuracy layout --report` from one JSON file per task, model and
seed. Kendall's tau, higher is better; slowdown@K is the best runtime among the first K picks over
the best of all, 1 is perfect. Every model has one thread. `zero-padding` is `ours` with node
layouts as the files pad them, `plain` that without attention across configs as well; `two-seeds`
is the mean of two trainings of `ours`, and `blend` that with boosting, as the recipe `cpu` does
(within one graph: with `columns`). `reference` is the competition's winning model.
""",
    "tile": """# How well tile models pick

Written by `python -m benchmarks.accuracy tile --report` from one JSON file per task, model and
seed. Tile score: 2 − slowdown of the best of five picks, higher is better. error@K is slowdown@K
− 1: how much slower than the best of all is the best of the first K picks. Every model has one
thread. `ours` is what the recipe `cpu` ships: three rankers, one seed of each, blended, and of
the blend the first picks chosen to cover for each other (ensembles/diversify_picks.py);
`best-first` is the blend without that. `late-fusion` is its network, `no-attention` that with
configs that do not see each other, `early-fusion` the dataset paper's baseline. `boosting` and
`linear` are its other rankers alone; `floor` is not trained, it takes the fewest steps first.
What ends in `spread` chooses its picks as `ours` does, all others pick best first. Nearly all
kernels have 40 configs, so that five picks are an eighth of them.
""",
}
NOTE = f"""Brackets: {CONFIDENCE:.0%} intervals, by bootstrap over families of graphs and seeds
({DRAWS:,} draws), or, where there is one graph, Student's over seeds. Differences are
paired by graph and seed. No interval accounts for the choice of the data set. Hyper-parameters were
chosen on families of the train split: `sample-folds` holds those out too, the other tasks do not.
"""


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


def report(kind: str, cells: Sequence[Cell]) -> list[str]:
    """Return the page on models of a kind, "layout" or "tile"."""
    by_task = {
        task: by_contender([cell for cell in cells if cell["task"] == task], CONTENDERS[kind])
        for task in TASKS[kind]
    }
    lines = [HEADS[kind], NOTE]
    for task, by_name in by_task.items():
        if by_name:
            lines += [f"## {task}", "", TASKS[kind][task].note, "", *section(kind, by_name), ""]
    return [*lines, made_with(cells)]


def section(kind: str, by_name: dict[str, list[Cell]]) -> list[str]:
    """Return one task's tables: a row per contender, and one per paired difference to ours.

    Args:
        by_name: cells by contender.
    """
    labels = LABELS[kind]
    cells = next(iter(by_name.values()))
    graphs = cells[0]["graphs"].values()
    families = {graph["family"] for graph in graphs}
    lines = [f"Held out: graphs {len(graphs)}, families {len(families)}.", *_ceiling(cells), ""]
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
    return [*lines, *table(["model", "seeds", *labels.values(), "CPU s", "wall s"], rows)]


def _ceiling(cells: Sequence[Cell]) -> list[str]:
    again = [graph["again_tau"] for graph in cells[0]["graphs"].values() if graph["again_tau"]]
    if again:
        return [
            f"A second measurement of up to 30 configs agrees to tau {np.mean(again):.3f} (mean of "
            f"{len(again)} graphs), see data/sample/README.md."
        ]
    graphs = [graph for cell in cells for graph in cell["graphs"].values()]
    noise = [graph["noise"] for graph in graphs if graph.get("noise")]
    if not noise:
        return []
    tau, best, count = (
        np.mean([found[key] for found in noise]) for key in ("tau", "best_tau", "n_repeated")
    )
    return [
        f"Noise ceiling, by the held-out configs that were measured twice ({count:.0f} on "
        f"average): two measurements agree to tau {tau:.3f}; knowing every true runtime would "
        f"score between that and {best:.3f}. They are no fair sample of all: a search comes "
        "back to the good ones, which lie close together, so the whole may rank better."
    ]


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
