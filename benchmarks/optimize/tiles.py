"""How many compiles it takes to come within 5 % of the best known tile of a kernel never seen.

The sample's kernels were measured with all tiles that are tried, so that any order of compiling can
be followed without measuring again. A kernel has c distinct tiles.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import render
from benchmarks.accuracy.cells import Cell, trained_ranker
from benchmarks.accuracy.report import estimate
from benchmarks.accuracy.tasks import TASKS, Sources, sample_families
from common.atomic import write_text
from common.reproducibility import generator, revision
from data.collect.measuring.search import Choices, Search, Space, genetic_search
from data.graphs.distinct import distinct_configs, group_means
from data.graphs.graph import TileGraph
from data.read import read_graph

NEAR = 1.05
BUDGETS = (1, 2, 3, 5, 10, 20)
CHILDREN = 4  # of the genetic search, for each tile that there is
ORDERS = ("random", "genetic", "ranker", "guided")
Runtimes = NDArray[np.float64]
Order = NDArray[np.int64]  # (c,) tiles, as they are compiled


def needed(order: Order, runtime: Runtimes) -> int:
    """Return how many of a kernel's tiles (c,) are compiled until one is near the best."""
    return int(np.argmax(runtime[order] <= NEAR * runtime.min())) + 1


def best_so_far(order: Order, runtime: Runtimes) -> Runtimes:
    """Return the slowdown of the best after each of BUDGETS compiles."""
    best = np.minimum.accumulate(runtime[order]) / runtime.min()
    return best[np.minimum(BUDGETS, len(best)) - 1]


def followed(search: Search, runtime: Runtimes) -> Order:
    """Follow a search of one gene to its end; what it left out is compiled last."""
    found: list[int] = []
    tiles = next(search)
    try:
        while True:
            found += tiles[:, 0].tolist()
            tiles = search.send(runtime[tiles[:, 0]])
    except StopIteration:
        return np.array([*dict.fromkeys([*found, *range(len(runtime))])])


def judge(
    scores: NDArray[np.float32], runtime: Runtimes, rng: np.random.Generator
) -> dict[str, Any]:
    """Follow each of ORDERS on one kernel's distinct tiles (c,).

    The genetic search begins with any tile. The guided one is that of `optimize --run`: a quarter
    of what may be compiled by the ranker's order, which then picks among the children.
    """
    n_tiles, ranked = len(runtime), np.argsort(scores, kind="stable")
    space = Space(np.array([n_tiles]), np.zeros(1, np.int64))

    def guide(tiles: Choices) -> NDArray[np.int64]:
        return np.argsort(scores[tiles[:, 0]], kind="stable")

    any_tile, quarter = rng.integers(n_tiles, size=(1, 1)), ranked[: BUDGETS[-1] // 4, None]
    genetic = genetic_search(space, CHILDREN * n_tiles, rng, first=any_tile)
    guided = genetic_search(space, n_tiles, rng, first=quarter, guide=guide)
    orders = (
        *(rng.permutation(n_tiles), followed(genetic, runtime)),
        *(ranked, followed(guided, runtime)),
    )
    return {
        name: {"needed": needed(order, runtime), "curve": best_so_far(order, runtime).tolist()}
        for name, order in zip(ORDERS, orders, strict=True)
    }


def run_tiles(seed: int, sources: Sources, out: Path) -> None:
    """Train what is shipped for tiles on folds by family, and follow it on the held-out kernels.

    Writes OUT/tiles-SEED.json, unless it is there.
    """
    path = out / f"tiles-{seed}.json"
    if path.exists():
        return
    shutil.rmtree(out / "work", ignore_errors=True)  # of a call that was killed
    cell, families = Cell("tile-folds", "shipped", seed), sample_families(sources.sample)
    found = {}
    for part in TASKS[cell.task].parts(sources, seed, out):
        ranker = trained_ranker(cell, part, out / "work" / part.name)
        for file in part.judged:
            graph = read_graph(file)
            assert isinstance(graph, TileGraph)
            first, group = distinct_configs(graph)
            runtime = group_means(graph.runtime_ns, group)
            name = file.submission_id
            judged = judge(ranker.score(graph)[first], runtime, generator(seed, "tiles", name))
            found[name] = {"family": families[name], **judged}
    write_text(path, json.dumps(found, indent=1) + "\n")


def tiles_section(out: Path) -> str | None:
    """Return the page's section on tiles; None where no seed was followed."""
    seeds = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("tiles-*.json"))]
    if not seeds:
        return None
    names = sorted(set.intersection(*map(set, seeds)))
    families = [seeds[0][name]["family"] for name in names]

    def values(kind: str, order: str) -> NDArray[np.float64]:  # (g, s) or (g, s, budgets)
        return np.array([[seed[name][order][kind] for seed in seeds] for name in names], float)

    share = values("needed", "ranker") / values("needed", "random").mean()
    return render(
        "optimize_tiles",
        needed={order: estimate(values("needed", order), families) for order in ORDERS},
        curves={order: values("curve", order).mean(axis=(0, 1)) for order in ORDERS},
        share=estimate(share, families),
        n_kernels=len(names),
        budgets=BUDGETS,
        revision=revision(),
    )
