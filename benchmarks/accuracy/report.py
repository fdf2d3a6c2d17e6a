"""The page on accuracy: a table and a picture of each task, from the cells' JSON files alone."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks import render, write_page
from benchmarks.accuracy.cells import CONTENDERS, SHIPPED
from benchmarks.accuracy.tasks import TASKS, sample_families
from common.errors import PipelineError
from common.metrics import CONFIDENCE, DRAWS, family_means, interval_of
from common.settings import SAMPLE
from models.config.custom import is_own, short_name
from submissions.report.charts import FAINT, OURS, picture
from submissions.score import DIVERSIFIED

Cell = dict[str, Any]
TAU, SCORE = "kendall_tau", "tile_score"
RANKED = {TAU: "tau", "opa": "OPA"}
PICKED = {
    **{"slowdown@1": "slowdown@1", "slowdown@5": "@5", "slowdown@10": "@10"},
    DIVERSIFIED: "diversified @5",
}
# Columns by kind of config; the first one leads, and is drawn.
LABELS = {"layout": {**RANKED, **PICKED}, "tile": {SCORE: "tile score", **RANKED, **PICKED}}
ATTENTION = {"layout": ("network", "no-attention"), "tile": ("network", "late-join")}
PICTURE = "accuracy.png"
RIVALS = ("floor", "linear", "boosting")  # what first picks have to be ahead of
N_FIRST = 52  # layout graphs of the sample's first measurement
MEMBERS = ("network", "boosting")  # of what is shipped for layouts
COLUMNS, WIDTH_INCHES, ROW_INCHES = 2, 11.0, 2.7  # of the picture's panels


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
    """Average a metric of one contender's cells; an interval ends at 1, which is perfect."""
    found = estimate(*values(cells, metric))
    if metric in PICKED:
        return replace(found, low=float(np.maximum(found.low, 1.0)))  # nan stays
    return replace(found, high=float(np.minimum(found.high, 1.0)))


def difference(cells: Sequence[Cell], others: Sequence[Cell], metric: str) -> Estimate | None:
    """Average what cells have more than others, paired by seed; None if they share none."""
    by_seed = {cell["seed"]: cell for cell in others}
    mine = [cell for cell in cells if cell["seed"] in by_seed]
    if not mine:
        return None
    both, families = values([*mine, *(by_seed[cell["seed"]] for cell in mine)], metric)
    return estimate(both[:, : len(mine)] - both[:, len(mine) :], families)


def leads(cells: Sequence[Cell], others: Sequence[Cell]) -> list[str]:
    """Say what each contender has more than in other cells, a line for each task that both have."""
    told = []
    for task, name in dict.fromkeys((cell["task"], cell["contender"]) for cell in cells):
        mine, theirs = (
            [cell for cell in own if (cell["task"], cell["contender"]) == (task, name)]
            for own in (cells, others)
        )
        labels = LABELS[TASKS[task].kind].items()
        found = [(label, metric, difference(mine, theirs, metric)) for metric, label in labels]
        if found[0][2]:
            text = ", ".join(f"{label} {lead_text(own, metric)}" for label, metric, own in found)
            told.append(f"{task}, {name}: {text}")
    return told


def leads_over(out: Path, against: str) -> list[str]:
    """Say what the models of a folder have more than in another one, or than one of them.

    Raises:
        PipelineError: there is nothing to pair.
    """
    cells = read_cells(out / "cells")
    if of_one := [cell for cell in cells if cell["contender"] == against]:
        names = {cell["contender"] for cell in cells} - {against}
        others = [{**cell, "contender": name} for cell in of_one for name in names]
        cells = [cell for cell in cells if cell["contender"] != against]
    elif Path(against).is_dir():
        others = read_cells(Path(against) / "cells")
    else:
        raise PipelineError(
            f"--against {against}: expected a folder, or a model that {out} holds: {_held(cells)}"
        )
    if not (told := leads(cells, others)):
        if of_one:
            raise PipelineError(f"{out}: none of {_held(cells)} has a task and seed of {against}")
        raise PipelineError(
            f"{out} holds {_held(cells)}, and {against} {_held(others)}: "
            "no model with the same task and seed in both"
        )
    return told


def _held(cells: Sequence[Cell]) -> str:
    return ", ".join(sorted({cell["contender"] for cell in cells})) or "no other model"


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
        raise PipelineError(f"{folder}: no results; train some first")
    return cells


def write_report(cells: Sequence[Cell], folder: Path, *, options: str | None = None) -> None:
    """Write accuracy.md and its picture.

    Args:
        options: of the call that writes it, where it is not the project's own page.

    Raises:
        PipelineError: a file cannot be written.
    """
    by_task = {}
    for task, known in TASKS.items():
        of_task = [cell for cell in cells if cell["task"] == task]
        own = sorted({cell["contender"] for cell in of_task} - CONTENDERS[known.kind].keys())
        if found := by_contender(of_task, (*own, *CONTENDERS[known.kind])):
            by_task[task] = found
    draw(by_task, folder / PICTURE)
    page = render(
        "accuracy",
        options=options or "--out runs/accuracy --report",
        is_whole=options is None,
        shown={name for found in by_task.values() for name in found},
        parts=[table_of(task, found) for task, found in by_task.items()],
        picture=PICTURE,
        by_collection=collection_rows(by_task.get("layouts", {})),
        by_choice=choice_rows(by_task.get("layouts", {})),
        own_models=own_budgets(cells),
        keys_set=keys_set(cells),
        made_with=made_with(cells),
        confidence=f"{CONFIDENCE:.0%}",
        draws=f"{DRAWS:,}",
    )
    write_page(folder / "accuracy.md", page)


def keys_set(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Return what `--set` changed, and the contenders that were trained with it."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        if keys := ", ".join(cell.get("set", ())):
            found.setdefault(keys, set()).add(cell["contender"])
    return {keys: sorted(names) for keys, names in sorted(found.items())}


def own_budgets(cells: Sequence[Cell]) -> dict[str, str]:
    """Say of each model of one's own what it was trained with, by its name."""
    budgets: dict[str, set[str]] = {}
    for cell in cells:
        if is_own(name := cell["contender"]):
            table = cell["recipe"][short_name(name)]
            text = f"{table['training']['steps']} steps, loss `{table['loss']}`"
            budgets.setdefault(name, set()).add(text)
    return {name: "; or ".join(sorted(texts)) for name, texts in sorted(budgets.items())}


def table_of(task: str, by_name: Mapping[str, list[Cell]], best: str = SHIPPED) -> dict[str, Any]:
    """Return what one task has shown: a row per contender, and what its graphs are.

    Args:
        by_name: cells by contender, of one task.
        best: the contender that the others are compared with, where it is there.
    """
    labels = LABELS[TASKS[task].kind]
    compared = (next(iter(labels)), "slowdown@1") if best in by_name else ()
    rows = []
    for name, own in by_name.items():
        texts = [text_of(estimate_of(own, metric), metric) for metric in labels]
        leads = [
            lead_text(difference(by_name[best], own, metric), metric) if name != best else ""
            for metric in compared
        ]
        trained = np.mean([cell["train_cpu_s"] for cell in own])
        ranked = np.mean([graph["rank_cpu_s"] for cell in own for graph in cell["graphs"].values()])
        rows.append([name, f"{len(own)}", *texts, *leads, f"{trained:,.1f}", f"{ranked:.2f}"])
    shown = list(by_name.values())[-1]
    graphs = shown[0]["graphs"].values()
    again = [graph["again_tau"] for graph in graphs if graph["again_tau"]]
    noise = [g["noise"] for cell in shown for g in cell["graphs"].values() if g.get("noise")]
    leads = [f"{best} − it: {labels[metric]}" for metric in compared]
    return {
        "attention": attention_text(task, by_name),
        "title": TASKS[task].title,
        "note": TASKS[task].note,
        "header": ["model", "seeds", *labels.values(), *leads, "training CPU s", "ranking CPU s"],
        "rows": rows,
        "n_graphs": len(graphs),
        "n_families": len({graph["family"] for graph in graphs}),
        "again": {"tau": np.mean(again), "count": len(again)} if again else None,
        "noise": noise and {key: np.mean([found[key] for found in noise]) for key in noise[0]},
    }


def attention_text(task: str, by_name: Mapping[str, list[Cell]]) -> str:
    """Say what a network gains where configs see each other; "" where one of the two is missing."""
    kind = TASKS[task].kind
    pair, labels = ATTENTION[kind], LABELS[kind]
    own, other = (by_name.get(name, []) for name in pair)
    leads = [
        f"{labels[metric]} {lead}"
        for metric in (next(iter(labels)), "slowdown@1")
        if (lead := lead_text(difference(own, other, metric), metric))
    ]
    return f"`{pair[0]}` − `{pair[1]}`: {', '.join(leads)}" if leads else ""


def collection_rows(by_name: Mapping[str, list[Cell]]) -> list[list[str]]:
    """Compare what is shipped for layouts with its best member, a row per collection.

    The member is the best on the very graphs it is compared on, which flatters it.
    """
    if not {SHIPPED, *MEMBERS} <= set(by_name):
        return []
    rows = []
    for collection, names in _grouped(by_name[SHIPPED][0], _collection).items():
        own = {name: [_within(cell, names) for cell in by_name[name]] for name in by_name}
        best = max(MEMBERS, key=lambda name: estimate_of(own[name], TAU).mean)
        leads = [
            lead_text(difference(own[SHIPPED], own[best], metric), metric)
            for metric in (TAU, "slowdown@5", DIVERSIFIED)
        ]
        n_graphs = len(own[best][0]["graphs"])
        shown = f"{best}, {text_of(estimate_of(own[best], TAU), TAU)}"
        rows.append([collection, f"{n_graphs}", shown, *leads])
    return rows


def choice_rows(by_name: Mapping[str, list[Cell]]) -> list[list[str]]:
    """Show what is shipped for layouts by what choices have seen of a graph, a row for each."""
    if not {SHIPPED, *RIVALS} <= set(by_name):
        return []
    chosen_on = first_measured()

    def seen(name: str) -> str:
        if by_name[SHIPPED][0]["graphs"][name]["split"] == "test":
            return "test split: seen by no choice, learned by no model"
        early, later = "first measured: choices were made on these", "labelled, measured later"
        return early if name in chosen_on else later

    rows = []
    for group, names in _grouped(by_name[SHIPPED][0], seen).items():
        own = {name: [_within(cell, names) for cell in by_name[name]] for name in by_name}
        shown = (TAU, "slowdown@1", "slowdown@5", DIVERSIFIED)
        means = [text_of(estimate_of(own[SHIPPED], metric), metric) for metric in shown]
        found = [difference(own[SHIPPED], own[rival], "slowdown@1") for rival in RIVALS]
        ahead = [lead_text(lead, "slowdown@1") for lead in found]
        rows.append([group, f"{len(names)}", *means, *ahead])
    return rows


def first_measured() -> set[str]:
    """Name the sample's layout graphs that choices were made on: the first ones in its manifest."""
    layouts = [name for name in sample_families(SAMPLE) if name.startswith("layout:")]
    return set(layouts[:N_FIRST])


def _collection(graph: str) -> str:
    return graph.rsplit(":", 1)[0]


def _grouped(cell: Cell, key: Callable[[str], str]) -> dict[str, set[str]]:
    """Group the names of a cell's graphs, groups in order of their own names."""
    groups: dict[str, set[str]] = {}
    for name in sorted(cell["graphs"], key=key):
        groups.setdefault(key(name), set()).add(name)
    return groups


def _within(cell: Cell, names: set[str]) -> Cell:
    return {**cell, "graphs": {name: g for name, g in cell["graphs"].items() if name in names}}


def draw(by_task: Mapping[str, Mapping[str, list[Cell]]], path: Path) -> None:
    """Draw a panel for each task, a row for each contender, the simplest on top."""
    n_rows = -(-len(by_task) // COLUMNS)
    with picture(path, (WIDTH_INCHES, ROW_INCHES * n_rows)) as figure:
        for number, (task, by_name) in enumerate(by_task.items()):
            line, column = divmod(number, COLUMNS)
            place = (0.13 + 0.5 * column, 1 - (line + 0.87) / n_rows, 0.34, 0.72 / n_rows)
            axes = figure.add_axes(place)
            metric, label = next(iter(LABELS[TASKS[task].kind].items()))
            found = [estimate_of(own, metric) for own in by_name.values()]
            axes.axvline(found[-1].mean, color=FAINT, linewidth=0.8, linestyle="--")
            for row, value in enumerate(found):
                ends = [value.low, value.high]
                axes.plot(ends, [row] * 2, color=OURS, linewidth=5, alpha=0.35)
                axes.plot(value.mean, row, "o", color=OURS, markersize=6)
            axes.set_yticks(range(len(found)), list(by_name))
            axes.set_ylim(len(found) - 0.4, -0.6)
            axes.set_title(f"{TASKS[task].title} ({label})", loc="right")


def made_with(cells: Sequence[Cell]) -> str:
    """Say where the cells come from."""
    revisions = sorted({str(cell["revision"]) for cell in cells})
    systems = sorted({cell["environment"]["system"] for cell in cells})
    return f"Made on {', '.join(systems)}; revisions {', '.join(revisions)}."


def text_of(found: Estimate, metric: str) -> str:
    """Write a mean with its interval: three digits of tau and OPA, four else."""
    return _text(found, f".{3 if metric in RANKED else 4}f")


def lead_text(found: Estimate | None, metric: str) -> str:
    """Write a difference, bold where its interval leaves out 0; "" for None."""
    if found is None:
        return ""
    text = _text(found, f"+.{3 if metric in RANKED else 4}f")
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def _text(found: Estimate, form: str) -> str:
    interval = "" if math.isnan(found.low) else f" [{found.low:{form}}, {found.high:{form}}]"
    return f"{found.mean:{form}}{interval}"
