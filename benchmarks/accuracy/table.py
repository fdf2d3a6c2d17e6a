"""The report on accuracy: Markdown tables from the cells' JSON files, and from nothing else."""

import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.comparisons import CONTENDERS
from benchmarks.accuracy.intervals import Estimate, estimate
from benchmarks.accuracy.tasks import TASKS
from common.bootstrap import CONFIDENCE, DRAWS
from common.errors import PipelineError

Cell = dict[str, Any]
OURS, REFERENCE = "ours", "reference"
TAU = "kendall_tau"
LABELS = {
    TAU: "tau",
    "slowdown@1": "slowdown@1",
    "slowdown@10": "@10",
    "slowdown@100": "@100",
}


def read_cells(folder: Path) -> list[Cell]:
    """Read every cell of a folder, by name.

    Raises:
        PipelineError: there is none.
    """
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    if not cells:
        raise PipelineError(f"{folder}: no results; run without --report first")
    return cells


def report(cells: Sequence[Cell]) -> list[str]:
    """Return the whole report."""
    tasks = [task for task in TASKS if any(cell["task"] == task for cell in cells)]
    lines = [
        "# How well layout models rank",
        "",
        "Written by `python -m benchmarks.accuracy.layout --report` from one JSON file per task,",
        "model and seed. Kendall's tau, higher is better; slowdown@K is the best runtime among the",
        "first K picks over the best of all, 1 is perfect. Every model has one thread. `--tuning`",
        "offers data to choose hyper-parameters on that no task here holds out, but for",
        "`sample-folds`: it holds out the sample's train graphs in turn, of which tuning sees all;",
        "its valid graphs, of which tuning sees none, are shown apart.",
        "",
        "`zero-padding` is `ours` with node layouts as the files pad them, `plain` that without",
        "attention across configs as well; `two-seeds` is the mean of two trainings of `ours`, and",
        "`blend` that with boosting, as the recipe `cpu` does (within one graph: with `columns`).",
        "",
        f"Brackets: {CONFIDENCE:.0%} intervals, by bootstrap over families of graphs and seeds",
        f"({DRAWS:,} draws), or, where there is one graph, Student's over seeds. Differences are",
        "paired by graph and seed. No interval accounts for the choice of the data set.",
        "",
        "## Main lines: mean tau",
        "",
        *_main_table(tasks, cells),
        "",
    ]
    for task in tasks:
        lines += [*section(task, [cell for cell in cells if cell["task"] == task]), ""]
    return [*lines, *made_with(cells)]


def _main_table(tasks: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    names = present(cells)
    lines = [row(["task", "graphs", *names]), "|---|---:|" + "---|" * len(names)]
    for task in tasks:
        by_name = by_contender([cell for cell in cells if cell["task"] == task])
        counts = {len(values(mine, TAU)[0]) for mine in by_name.values()}
        texts = [
            text_of(estimate_of(by_name[name], TAU)) if name in by_name else "" for name in names
        ]
        lines.append(row([task, "/".join(map(str, sorted(counts))), *texts]))
    return lines


def section(task: str, cells: Sequence[Cell]) -> list[str]:
    """Return one task's tables."""
    by_name = by_contender(cells)
    graphs = next(iter(by_name.values()))[0]["graphs"]
    families = {graph["family"] for graph in graphs.values()}
    interval = "over seeds alone" if len(graphs) == 1 else "over families and seeds"
    lines = [
        f"## {task}",
        "",
        TASKS[task].note,
        "",
        f"Held out: graphs {len(graphs)}, families {len(families)}; intervals {interval}.",
        *_ceiling(cells),
        "",
        *accuracy_table(by_name),
        "",
        *curve_table(by_name),
    ]
    return [*lines, *_valid_alone(by_name)]


def accuracy_table(
    by_name: dict[str, list[Cell]], labels: dict[str, str] = LABELS, *, by: str = "family"
) -> list[str]:
    """Return a row per contender, and one per contender's paired difference to ours.

    Args:
        by_name: cells by contender.
        labels: the metrics to show, and how they are called.
        by: as of `values`.
    """
    heads = ["model", "seeds", *labels.values(), "CPU s", "wall s", "steps each"]
    lines = [row(heads), "|---|---:|" + "---|" * len(labels) + "---:|" * 3]
    for name, cells in by_name.items():
        costs = [np.mean([cell[key] for cell in cells]) for key in ("cpu_s", "wall_s")]
        texts = [text_of(estimate_of(cells, metric, by), metric) for metric in labels]
        steps = f"{cells[0]['steps']:,}"
        cost = [f"{value:,.1f}" for value in costs]
        lines.append(row([name, f"{len(cells)}", *texts, *cost, steps]))
    for name, cells in by_name.items():
        if name == OURS or OURS not in by_name:
            continue
        one, other = paired(cells, by_name[OURS])
        if one:
            texts = [text_of(difference(one, other, metric, by), metric, True) for metric in labels]
            lines.append(row([f"{name} − ours", f"{len(one)}", *texts, "", "", ""]))
    return lines


def curve_table(by_name: dict[str, list[Cell]]) -> list[str]:
    """Return mean held-out tau along training, and how soon each reaches the reference's."""
    nets = {name: cells for name, cells in by_name.items() if len(cells[0]["curve"]) > 1}
    if not nets:
        return []
    n_points = max(len(cells[0]["curve"]) for cells in nets.values())
    shares = [f"{(point + 1) / n_points:.0%}" for point in range(n_points)]
    lines = [
        "Tau along training (mean over graphs and seeds, by share of the steps), and when it first",
        "is the reference's final one or more, by CPU seconds of the same seed's training:",
        "",
        row(["model", *shares, "gets there", "at this share of the reference's time (median)"]),
        "|---|" + "---:|" * (n_points + 2),
    ]
    for name, cells in nets.items():
        taus = np.array([[_mean_tau(point) for point in cell["curve"]] for cell in cells])  # (s, p)
        texts = [f"{tau:.3f}" for tau in taus.mean(axis=0)]
        texts += [""] * (n_points - len(texts))
        lines.append(row([name, *texts, *_reaching(*paired(cells, by_name.get(REFERENCE, [])))]))
    return lines


def _reaching(cells: Sequence[Cell], references: Sequence[Cell]) -> list[str]:
    """Say how many seeds reach the reference's final tau, and after what share of its time."""
    shares = [time_to_reach(*pair) for pair in zip(cells, references, strict=True)]
    reached = [share for share in shares if share is not None]
    if not shares:
        return ["", ""]
    return [f"{len(reached)} of {len(shares)}", f"{median(reached):.2f}" if reached else ""]


def time_to_reach(cell: Cell, reference: Cell) -> float | None:
    """Return CPU seconds until the reference's final tau over the reference's; None if never."""
    goal = _mean_tau(reference["curve"][-1])
    for point in cell["curve"]:
        if _mean_tau(point) >= goal:
            return float(point["cpu_s"] / reference["cpu_s"])
    return None


def _mean_tau(point: dict[str, Any]) -> float:
    return float(np.mean(list(point["kendall_tau"].values())))


def values(
    cells: Sequence[Cell], metric: str, by: str = "family"
) -> tuple[NDArray[np.float64], list[str]]:
    """Return one metric as (g, s), and g groups, of the graphs that all cells judge, by name.

    Args:
        cells: s of them.
        metric: a graph's.
        by: "family", or "graph" if each is a group of its own.
    """
    names = sorted(set.intersection(*(set(cell["graphs"]) for cell in cells)))
    table = [[cell["graphs"][name][metric] for cell in cells] for name in names]
    groups = [cells[0]["graphs"][name][by] if by == "family" else name for name in names]
    return np.asarray(table, dtype=np.float64), groups


def paired(cells: Sequence[Cell], others: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Return the cells of both that share a seed, in the seeds' order."""
    by_seed = {cell["seed"]: cell for cell in others}
    common = [cell for cell in cells if cell["seed"] in by_seed]
    return common, [by_seed[cell["seed"]] for cell in common]


def estimate_of(cells: Sequence[Cell], metric: str, by: str = "family") -> Estimate:
    """Average a metric of one contender's cells."""
    return estimate(*values(cells, metric, by))


def difference(
    cells: Sequence[Cell], ours: Sequence[Cell], metric: str, by: str = "family"
) -> Estimate:
    """Average what cells have more than ours; both of the same seeds in the same order."""
    table, groups = values([*cells, *ours], metric, by)
    return estimate(table[:, : len(cells)] - table[:, len(cells) :], groups)


def _ceiling(cells: Sequence[Cell]) -> list[str]:
    """Say how far two measurements of the same configs agree, where that is known."""
    graphs = [graph for cell in cells for graph in cell["graphs"].values()]
    again = [graph["again_tau"] for graph in cells[0]["graphs"].values() if graph["again_tau"]]
    noise = [graph["noise"] for graph in graphs if graph["noise"]]
    lines = []
    if again:
        lines.append(
            f"A second measurement of up to 30 configs agrees to tau {np.mean(again):.3f} (mean of "
            f"{len(again)} graphs), see data/sample/README.md."
        )
    elif noise:
        tau, best, count = (
            np.mean([found[key] for found in noise]) for key in ("tau", "best_tau", "n_repeated")
        )
        lines.append(
            f"Noise ceiling, by the held-out configs that were measured twice ({count:.0f} on "
            f"average): two measurements agree to tau {tau:.3f}; knowing every true runtime would "
            f"score between that and {best:.3f}. They are no fair sample of all: a search comes "
            "back to the good ones, which lie close together, so the whole may rank better."
        )
    return lines


def _valid_alone(by_name: dict[str, list[Cell]]) -> list[str]:
    """Say what the sample's valid graphs alone give, where train graphs are held out too."""
    splits = {graph["split"] for graph in next(iter(by_name.values()))[0]["graphs"].values()}
    if splits != {"train", "valid"}:
        return []
    texts = []
    for name, cells in by_name.items():
        only = [
            cell | {"graphs": {k: v for k, v in cell["graphs"].items() if v["split"] == "valid"}}
            for cell in cells
        ]
        texts.append(f"{name} {text_of(estimate_of(only, TAU))}")
    return ["", f"Tau of the valid split's graphs alone: {', '.join(texts)}."]


def by_contender(
    cells: Sequence[Cell], known: Collection[str] = CONTENDERS
) -> dict[str, list[Cell]]:
    """Return each contender's cells by seed, in the order of `known`."""
    return {
        name: sorted(
            (cell for cell in cells if cell["contender"] == name), key=lambda cell: cell["seed"]
        )
        for name in present(cells, known)
    }


def present(cells: Sequence[Cell], known: Collection[str] = CONTENDERS) -> list[str]:
    """Return the contenders that have cells."""
    found = {cell["contender"] for cell in cells}
    return [name for name in known if name in found]


def made_with(cells: Sequence[Cell]) -> list[str]:
    """Say where the cells come from."""
    revisions = sorted({str(cell["revision"]) for cell in cells})
    systems = sorted({cell["environment"]["system"] for cell in cells})
    return [f"Made on {', '.join(systems)}; revisions {', '.join(revisions)}."]


def text_of(found: Estimate, metric: str = TAU, signed: bool = False) -> str:
    """Write a mean with its interval: three digits of a tau, four of all else."""
    digits = 3 if metric == TAU else 4
    sign = "+" if signed else ""
    mean = f"{found.mean:{sign}.{digits}f}"
    if math.isnan(found.low):
        return mean
    return f"{mean} [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"


def row(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
