"""The report on tile models: Markdown tables from the cells' JSON files, and from nothing else."""

from collections.abc import Sequence

from benchmarks.accuracy.comparisons import TILE_CONTENDERS
from benchmarks.accuracy.table import (
    OURS,
    TAU,
    Cell,
    accuracy_table,
    by_contender,
    difference,
    made_with,
    paired,
    row,
    text_of,
)
from benchmarks.accuracy.tile_tasks import TILE_TASKS
from common.bootstrap import CONFIDENCE, DRAWS

SCORE = "tile_score"
LEAST_GAIN = 1e-6  # what rounding may make
LABELS = {
    SCORE: "tile score",
    "top1_error": "error@1",
    "top5_error": "@5",
    "top10_error": "@10",
    TAU: "tau",
}


def report(cells: Sequence[Cell]) -> list[str]:
    """Return the whole report."""
    lines = [
        "# How well tile models pick",
        "",
        "Written by `python -m benchmarks.accuracy.tile --report` from one JSON file per task,",
        "model and seed. Tile score: 2 − slowdown of the best of five picks, higher is better.",
        "error@K is slowdown@K − 1: how much slower than the best of all is the best of the first",
        "K picks. Every model has one thread. `ours` is what the recipe `cpu` ships: three",
        "rankers, one seed of each, blended, and of the blend the first picks chosen to cover",
        "for each other (ensembles/diversify_picks.py); `best-first` is the blend without that.",
        "`late-fusion` is its network, `no-attention` that with configs that do not see each",
        "other, `early-fusion` the dataset paper's baseline. `boosting` and `linear` are its other",
        "rankers alone; `floor` is not trained, it takes the fewest steps first. What ends in",
        "`spread` chooses its picks as `ours` does, all others pick best first. `--tuning` judges",
        "on families of the train split alone: it sees nothing of what `sample` judges, but",
        "`sample-folds` judges those families too.",
        "",
        f"Brackets: {CONFIDENCE:.0%} intervals, by bootstrap over kernels and seeds ({DRAWS:,}",
        "draws). Differences are paired by kernel and by the seeds that both have. Kernels of a",
        "family vary together, which these intervals leave out; those over families stand in a",
        "second table. Families differ by name; some do nearly the same, and sizes recur. Nearly",
        "all kernels have 40 configs, so that five picks are an eighth of them.",
        "",
    ]
    for task in TILE_TASKS:
        mine = [cell for cell in cells if cell["task"] == task]
        if mine:
            lines += [*section(task, mine), ""]
    return [*lines, *made_with(cells)]


def section(task: str, cells: Sequence[Cell]) -> list[str]:
    """Return one task's table."""
    by_name = by_contender(cells, TILE_CONTENDERS)
    graphs = cells[0]["graphs"]
    families = {graph["family"] for graph in graphs.values()}
    return [
        f"## {task}",
        "",
        TILE_TASKS[task].note,
        "",
        f"Held out: kernels {len(graphs)}, families {len(families)}.",
        "",
        *accuracy_table(by_name, LABELS, by="graph"),
        *_over_families(by_name, len(families)),
    ]


def _over_families(by_name: dict[str, list[Cell]], n_families: int) -> list[str]:
    """Say how sure the differences are where a family is drawn or left with all its kernels."""
    if OURS not in by_name or n_families < 2:
        return []
    lines = [
        "",
        "The same over families, drawn or left with all their kernels. `better`: than `ours`, by",
        "the mean of a family. `most`: the family that makes up most of the difference, and its",
        "share of it; above 100 % the others together differ the other way.",
        "",
        row(["less ours", SCORE.replace("_", " "), "families better", "worse", "most"]),
        "|---|---|---:|---:|---|",
    ]
    for name, cells in by_name.items():
        one, other = paired(cells, by_name[OURS])
        if name == OURS or not one:
            continue
        gains = family_gains(one, other)
        most = max(gains, key=lambda family: abs(gains[family]))
        total = sum(gains.values())
        texts = [
            name,
            text_of(difference(one, other, SCORE), SCORE, signed=True),
            str(sum(gain > LEAST_GAIN for gain in gains.values())),
            str(sum(gain < -LEAST_GAIN for gain in gains.values())),
            f"{most} {gains[most] / total:.0%}" if total else "",
        ]
        lines.append(row(texts))
    return lines


def family_gains(one: Sequence[Cell], other: Sequence[Cell]) -> dict[str, float]:
    """Return how much more tile score each family's kernels have in `one`, added up.

    Args:
        one, other: cells of the same seeds, in the same order.
    """
    gains: dict[str, float] = {}
    for mine, theirs in zip(one, other, strict=True):
        for name, graph in mine["graphs"].items():
            gain = (graph[SCORE] - theirs["graphs"][name][SCORE]) / len(one)
            gains[graph["family"]] = gains.get(graph["family"], 0.0) + gain
    return gains
