"""How many compiles it takes to come within 5 % of the best known tile of a kernel never seen.

The sample's kernels were measured with all tiles that are tried, so that any order of compiling can
be followed without measuring again.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.cells import Cell, trained_ranker
from benchmarks.accuracy.report import Estimate, estimate
from benchmarks.accuracy.tasks import TASKS, Sources, sample_families
from common.atomic import write_text
from data.graphs.distinct import distinct_configs, group_means
from data.graphs.graph import TileGraph
from data.read import read_graph

NEAR = 1.05
BUDGETS = (1, 2, 3, 5, 10, 20)
DRAWS = 200  # random orders, for their curve; how many they need is known exactly
Runtimes = NDArray[np.float64]
Order = Callable[[NDArray[np.float32], Runtimes], NDArray[np.int64]]


def needed(order: NDArray[np.int64], runtime: Runtimes) -> int:
    """Return how many of a kernel's tiles (c,) are compiled until one is near the best."""
    return int(np.argmax(runtime[order] <= NEAR * runtime.min())) + 1


def needed_at_random(runtime: Runtimes) -> float:
    """Return what `needed` is on average over all orders: (c + 1) / (near ones + 1)."""
    return float((len(runtime) + 1) / ((runtime <= NEAR * runtime.min()).sum() + 1))


def best_so_far(order: NDArray[np.int64], runtime: Runtimes) -> Runtimes:
    """Return the slowdown of the best after each of BUDGETS compiles."""
    best = np.minimum.accumulate(runtime[order]) / runtime.min()
    return best[np.minimum(BUDGETS, len(best)) - 1]


def judge(scores: NDArray[np.float32], runtime: Runtimes, seed: int) -> dict[str, Any]:
    """Follow the ranking and random orders on one kernel's distinct tiles (c,)."""
    rng = np.random.default_rng(seed)
    drawn = [best_so_far(rng.permutation(len(runtime)), runtime) for _ in range(DRAWS)]
    order = np.argsort(scores, kind="stable")
    return {
        "needed": {"random": needed_at_random(runtime), "ranker": needed(order, runtime)},
        "curve": {
            "random": np.mean(drawn, axis=0).tolist(),
            "ranker": best_so_far(order, runtime).tolist(),
        },
    }


def run_tiles(seed: int, sources: Sources, out: Path) -> None:
    """Train what is shipped for tiles on folds by family, and follow it on the held-out kernels.

    Writes OUT/tiles-SEED.json, unless it is there.
    """
    path = out / f"tiles-{seed}.json"
    if path.exists():
        return
    cell, families = Cell("tile-folds", "shipped", seed), sample_families(sources.sample)
    found = {}
    for part in TASKS[cell.task].parts(sources, seed, out):
        ranker = trained_ranker(cell, part, out / "work" / part.name)
        for file in part.judged:
            graph = read_graph(file)
            assert isinstance(graph, TileGraph)
            first, group = distinct_configs(graph)
            runtime = group_means(graph.runtime_ns, group)
            judged = judge(ranker.score(graph)[first], runtime, seed)
            found[file.submission_id] = {"family": families[file.submission_id], **judged}
    write_text(path, json.dumps(found, indent=1) + "\n")


def tile_rows(out: Path) -> tuple[list[list[str]], Estimate, int]:
    """Return a row per order, the ratio of compiles needed, and the number of kernels."""
    seeds = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("tiles-*.json"))]
    names = sorted(set.intersection(*map(set, seeds)))
    families = [seeds[0][name]["family"] for name in names]

    def values(kind: str, order: str) -> NDArray[np.float64]:  # (g, s) or (g, s, budgets)
        return np.array([[seed[name][kind][order] for seed in seeds] for name in names], float)

    rows = []
    for order in ("random", "ranker"):
        count = estimate(values("needed", order), families)
        curve = values("curve", order).mean(axis=(0, 1))
        shown = f"{count.mean:.2f} [{count.low:.2f}, {count.high:.2f}]"
        rows.append([order, shown, *(f"{value:.3f}" for value in curve)])
    share = values("needed", "ranker") / values("needed", "random").mean()
    return rows, estimate(share, families), len(names)
