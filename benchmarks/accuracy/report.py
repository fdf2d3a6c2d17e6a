"""Write the page on accuracy: two tables per task, from the JSON files of the cells."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks import CODE, interval_text, write_page
from benchmarks.accuracy.cells import BASELINE, CONTENDERS, DEFAULT
from benchmarks.accuracy.tasks import FEW_CONFIGS, FOLDS, TASKS, sample_families
from benchmarks.results import changes_since
from common.errors import PipelineError
from common.metrics import CONFIDENCE, DRAWS, METRICS, family_means, interval_of
from common.reproducibility import revision
from common.settings import SAMPLE
from models.config.custom import is_own
from submissions.report.charts import FAINT, OURS, picture
from submissions.score import DIVERSIFIED

CellResult = dict[str, Any]
# Cells by contender.
ByName = Mapping[str, list[CellResult]]
RANKED = {"kendall_tau": "tau", "opa": "OPA"}
SLOWDOWNS = {
    **{"slowdown@1": "slowdown@1", "slowdown@5": "@5", "slowdown@10": "@10"},
    DIVERSIFIED: "diversified @5",
}
# Columns by kind of config.
LABELS = {
    "layout": {**RANKED, **SLOWDOWNS},
    "tile": {"tile_score": "tile score", **RANKED, **SLOWDOWNS},
}
# The README's picture: layouts of held-out families, by these contenders.
OVERVIEW = "overview.png"
OVERVIEW_LABELS = {
    BASELINE: "untrained rule",
    "baseline_gcn": "dataset's baseline",
    "tgraph": "winner's network, 250 steps",
    DEFAULT: "this project",
}
# Contenders whose first configs the default recipe must beat.
RIVALS = (BASELINE, "layout_linear", "layout_boosting")
# Layout graphs of the sample's first measurement, which the choices of the project used.
N_FIRST = 52
# Columns of the first table of a task, after the differences. The second table has all metrics.
MEANS = ("tau", "tile score", "slowdown@1", "diversified @5")


class Estimate(NamedTuple):
    """A mean and its interval, which is nan if there are too few values for a bootstrap."""

    mean: float
    low: float = math.nan
    high: float = math.nan


def estimate(values: NDArray[np.float64], families: Sequence[str]) -> Estimate:
    """Estimate a mean, with a bootstrap interval over families and seeds.

    The interval of one graph is Student's over seeds.

    Args:
        values: Number per graph and seed, (g, s).
        families: Family of each graph, (g,). Graphs of one family vary together.
    """
    mean, n_seeds = float(values.mean()), values.shape[1]
    if len(values) == 1 and n_seeds > 1:
        quantile = student.ppf((1 + CONFIDENCE) / 2, n_seeds - 1)
        half = float(quantile * values.std(ddof=1) / math.sqrt(n_seeds))
        return Estimate(mean, mean - half, mean + half)
    if len(set(families)) * n_seeds < 2:
        return Estimate(mean)
    return Estimate(mean, *interval_of(family_means(values, families)))


def values(cells: Sequence[CellResult], metric: str) -> tuple[NDArray[np.float64], list[str]]:
    """Return a metric, (g, s), and the families, (g,), of the graphs that all cells judge."""
    names = sorted(set.intersection(*(set(cell["graphs"]) for cell in cells)))
    rows = [[cell["graphs"][name][metric] for cell in cells] for name in names]
    return np.array(rows, np.float64), [cells[0]["graphs"][name]["family"] for name in names]


def estimate_of(cells: Sequence[CellResult], metric: str) -> Estimate:
    """Estimate a metric of one contender. The interval ends at 1, a perfect score."""
    mean, low, high = estimate(*values(cells, metric))
    # nan stays.
    if metric in SLOWDOWNS:
        return Estimate(mean, float(np.maximum(low, 1.0)), high)
    return Estimate(mean, low, float(np.minimum(high, 1.0)))


def difference(
    cells: Sequence[CellResult], rivals: Sequence[CellResult], metric: str
) -> Estimate | None:
    """Estimate a metric minus another contender's by graph and seed. None without a common seed."""
    by_seed = {cell["seed"]: cell for cell in rivals}
    matches = [cell for cell in cells if cell["seed"] in by_seed]
    if not matches:
        return None
    pairs, families = values([*matches, *(by_seed[cell["seed"]] for cell in matches)], metric)
    return estimate(pairs[:, : len(matches)] - pairs[:, len(matches) :], families)


def by_contender(cells: Sequence[CellResult]) -> dict[str, dict[str, list[CellResult]]]:
    """Return the cells of each task by contender, sorted by seed, with custom models first."""
    tasks: dict[str, dict[str, list[CellResult]]] = {}
    for task, description in TASKS.items():
        of_task = sorted((c for c in cells if c["task"] == task), key=lambda cell: cell["seed"])
        for name in (*custom_models(of_task), *CONTENDERS[description.kind]):
            if of_name := [cell for cell in of_task if cell["candidate"] == name]:
                tasks.setdefault(task, {})[name] = of_name
    return tasks


def custom_models(cells: Sequence[CellResult]) -> list[str]:
    return sorted({cell["candidate"] for cell in cells if is_own(cell["candidate"])})


def compare_with(out: Path, against: str) -> list[str]:
    """Return lines with another folder's results, or a contender's, minus those of `out`."""
    tasks = by_contender(read_cells(out))
    is_folder = Path(against).is_dir()
    rows_of = by_contender(read_cells(Path(against))) if is_folder else {}
    lines = []
    for task, by_name in tasks.items():
        for name, cells in by_name.items():
            rivals = rows_of.get(task, {}).get(name, []) if is_folder else by_name.get(against, [])
            labels = LABELS[TASKS[task].kind].items()
            # The page has the same sign: the reference minus the row.
            leads = {label: lead_text(difference(rivals, cells, m), m) for m, label in labels}
            if name != against and all(leads.values()):
                texts = (f"{label} {lead}" for label, lead in leads.items())
                reference = f"{name} of {against}" if is_folder else against
                lines.append(f"{task}, {reference} minus {name}: {', '.join(texts)}")
    if not lines:
        names = sorted({name for by_name in tasks.values() for name in by_name})
        raise PipelineError(
            f"--against {against}: has no task and seed in common with {out}; expected another "
            f"--out, or one of {', '.join(names)}"
        )
    return lines


def read_cells(out: Path) -> list[CellResult]:
    """Read every cell of a folder of results, sorted by file name."""
    paths = sorted((out / "cells").glob("*.json"))
    if not paths:
        raise PipelineError(f"{out}: no results; train some first")
    return [json.loads(path.read_text("utf-8")) for path in paths]


def write_report(cells: Sequence[CellResult], folder: Path) -> None:
    """Write accuracy.md, and the picture of the README."""
    by_task = by_contender(cells)
    draw_overview(by_task.get("layouts", {}), folder / OVERVIEW)
    write_page(
        "accuracy",
        folder,
        shown={name for by_name in by_task.values() for name in by_name},
        parts=[table_of(task, by_name) for task, by_name in by_task.items()],
        by_choice=choice_rows(by_task.get("layouts", {})),
        own_models=custom_models(cells),
        keys_set=sorted({(", ".join(c["set"]), c["candidate"]) for c in cells if c.get("set")}),
        systems=", ".join(sorted({cell["environment"]["system"] for cell in cells})),
        n_folds=FOLDS,
        few_configs=FEW_CONFIGS,
        confidence=f"{CONFIDENCE:.0%}",
        draws=f"{DRAWS:,}",
    )


def table_of(task: str, by_name: ByName) -> dict[str, Any]:
    """Return the tables of one task with a row per contender, and the counts of its graphs.

    The first table has the differences to `default`, if that has cells, and means. The second one
    has all metrics with intervals, and costs.
    """
    labels = LABELS[TASKS[task].kind]
    lead_metrics = (METRICS[TASKS[task].kind], "slowdown@1") if DEFAULT in by_name else ()
    rows, intervals = [], []
    for name, cells in by_name.items():
        texts = {label: value_text(estimate_of(cells, m), m) for m, label in labels.items()}
        leads = [lead_text(difference(by_name[DEFAULT], cells, m), m) for m in lead_metrics]
        leads = ["–"] * len(lead_metrics) if name == DEFAULT else leads
        train_s = np.mean([cell["train_cpu_s"] for cell in cells])
        rank_s = np.mean([g["rank_cpu_s"] for cell in cells for g in cell["graphs"].values()])
        means = [texts[label].partition(" [")[0] for label in texts if label in MEANS]
        rows.append([name, *leads, *means])
        costs = (f"{train_s:,.1f}", f"{rank_s:.2f}")
        intervals.append([name, f"{len(cells)}", *texts.values(), *costs])
    last_cells = list(by_name.values())[-1]
    graphs = last_cells[0]["graphs"].values()
    again = [graph["again_tau"] for graph in graphs if graph["again_tau"]]
    noise = [g["noise"] for cell in last_cells for g in cell["graphs"].values() if g.get("noise")]
    leads = [f"{DEFAULT} − it: {labels[metric]}" for metric in lead_metrics]
    return {
        "task": task,
        "title": TASKS[task].title,
        "header": ["model", *leads, *(label for label in labels.values() if label in MEANS)],
        "rows": rows,
        "interval_header": ["model", "seeds", *labels.values(), "training CPU s", "ranking CPU s"],
        "intervals": intervals,
        "n_graphs": len(graphs),
        "n_families": len({graph["family"] for graph in graphs}),
        "again": {"tau": np.mean(again), "count": len(again)} if again else None,
        "revisions": revision_of(cell for cells in by_name.values() for cell in cells),
        "noise": noise and {key: np.mean([entry[key] for entry in noise]) for key in noise[0]},
    }


def revision_of(cells: Iterable[CellResult]) -> str:
    """Return this revision, or the cells' own ones if code that decides cells has changed since."""
    own = sorted({cell["revision"] for cell in cells})
    code = ("benchmarks/accuracy/cells.py", "benchmarks/accuracy/tasks.py", *CODE["accuracy"][1:])
    is_older = any([*changes_since(name, code)] for name in own)
    return ", ".join(own) if is_older else str(revision())


def choice_rows(by_name: ByName) -> list[list[str]]:
    """Return a row of the default recipe on held-out layouts per use of the graphs in choices."""
    if not {DEFAULT, *RIVALS} <= set(by_name):
        return []
    first, graphs = first_measured(), by_name[DEFAULT][0]["graphs"]

    def use_in_choices(name: str) -> str:
        if graphs[name]["split"] == "test":
            return "test split: no choice and no training used these"
        early, later = "choices used these (measured first)", "labelled, measured later"
        return early if name in first else later

    rows = []
    for group in sorted(set(map(use_in_choices, graphs))):
        names = [name for name in graphs if use_in_choices(name) == group]
        default, *rivals = (
            [{**cell, "graphs": {name: cell["graphs"][name] for name in names}} for cell in cells]
            for cells in (by_name[contender] for contender in (DEFAULT, *RIVALS))
        )
        metrics = ("kendall_tau", "slowdown@1", "slowdown@5", DIVERSIFIED)
        means = [value_text(estimate_of(default, metric), metric) for metric in metrics]
        leads = [difference(default, rival, "slowdown@1") for rival in rivals]
        rows.append([group, f"{len(names)}", *means, *(lead_text(v, "slowdown@1") for v in leads)])
    return rows


def first_measured() -> set[str]:
    """Return the layout graphs that choices used, which are the first in the sample's manifest."""
    layouts = [name for name in sample_families(SAMPLE) if name.startswith("layout:")]
    return set(layouts[:N_FIRST])


def draw_overview(by_name: ByName, path: Path) -> None:
    """Draw Kendall's tau on held-out families, unless a contender of the picture has no cell."""
    if not set(OVERVIEW_LABELS) <= set(by_name):
        return
    again = [graph["again_tau"] for graph in by_name[DEFAULT][0]["graphs"].values()]
    ceiling = float(np.mean([tau for tau in again if tau]))
    with picture(path, (7.5, 2.4)) as figure:
        axes = figure.add_axes((0.27, 0.2, 0.69, 0.62))
        for row, name in enumerate(OVERVIEW_LABELS):
            mean, low, high = estimate_of(by_name[name], "kendall_tau")
            axes.barh(row, mean, color=OURS, alpha=1 if name == DEFAULT else 0.45)
            axes.plot([low, high], [row] * 2, color="black", linewidth=1.2)
            axes.text(high + 0.012, row, f"{mean:.3f}", va="center")
        axes.axvline(ceiling, color=FAINT, linestyle="--")
        axes.text(ceiling, -0.55, f"noise ceiling {ceiling:.3f}", ha="right", va="bottom")
        axes.set_yticks(range(len(OVERVIEW_LABELS)), list(OVERVIEW_LABELS.values()))
        axes.set_axisbelow(True)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(OVERVIEW_LABELS) - 0.4, -0.6)
        axes.set_xlabel("Kendall's tau on programs of held-out families (95 % intervals)")


def value_text(value: Estimate, metric: str, sign: str = "") -> str:
    """Format a mean with its interval: three digits of tau and OPA, four of other metrics."""
    form = f"{sign}.{3 if metric in RANKED else 4}f"
    return f"{value.mean:{form}}" if math.isnan(value.low) else interval_text(*value, form)


def lead_text(lead: Estimate | None, metric: str) -> str:
    """Format a difference in bold if its interval excludes 0, and None as ""."""
    if lead is None:
        return ""
    # + 0.0 makes -0.0 positive.
    lead = Estimate(*(round(value, 3 if metric in RANKED else 4) + 0.0 for value in lead))
    text = value_text(lead, metric, "+")
    return f"**{text}**" if lead.low > 0 or lead.high < 0 else text
