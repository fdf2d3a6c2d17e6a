"""What chooses compiler options and tiles, of families never seen, by the number of compiles.

All settings were measured, so that any way to choose is followed by looking up what a compile would
have told. Of compiler options a program has 96 settings, measured once, in rounds. A way sees the
first half of these; of what it has compiled, the default included, the fastest there is reported by
the second half, which no way sees. The sample's kernels have c distinct tiles, and what is asked is
how many compiles it takes to come within 5 % of the best known one.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.go.network import DecisionGraph, Policy, decision_graph, given
from autotune.go.ppo import ChoiceRanker, Tried, fit_ranker, go_search
from autotune.go.pretrain import (
    ALL_SETTINGS,
    CONFIG,
    N_ROUNDS,
    SCALING,
    OptionTable,
    Times,
    measure_options,
    rows_of,
    train_policy,
)
from autotune.measure.search import Guide, Search, genetic_search
from autotune.spaces import menu
from benchmarks import render
from benchmarks.accuracy.cells import DEFAULT, Cell, train_ranker
from benchmarks.accuracy.report import Estimate, estimate
from benchmarks.accuracy.tasks import TASKS, Sources, sample_families
from common.files import write_text
from common.reproducibility import generator, revision
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph, distinct_configs, group_means
from data.hlo.choices import Choices, Space, draw_choices
from features.scaling import fit_node_scaler
from models.training.device import CPU, torch_prepared

BUDGETS = (1, 2, 3, 5, 10, 20)
USERS = (  # functions of user_programs.py
    *("transformer", "n_body", "mixer", "elementwise", "lstm"),
    *("mlp_step", "batch_norm", "stencil", "convolution", "attention"),
)
PROGRAMS = (
    *(f"benchmarks.autotune.user_programs:{name}" for name in USERS),
    *("autoencoder_b4", "vae_b32", "points_b16", "dilated_b1", "recommender_b64", "two_tower_b8"),
)
FAMILIES = {PROGRAMS[0]: "attention", PROGRAMS[9]: "attention"}  # any other is a family of its own
FOLDS = 3
RANKER_STEPS = 400
MAX_CHILDREN = 200  # equal ones are compiled once
MENU, AS_OPTIMIZE = "menu, then random", "menu, then genetic"
ALONE_FIRST = menu()[np.argsort((menu() > 0).sum(axis=1), kind="stable")]  # as before `portfolio`
WAYS = (
    *("random", MENU, AS_OPTIMIZE, "genetic", "portfolio"),
    *("guided", "ranked", "zero-shot", "fine-tuned"),
)
NEAR = 1.05  # the best tile
CHILDREN = 4  # of the genetic search, for each tile that there is
ORDERS = ("random", "genetic", "ranker", "guided")
Order = NDArray[np.int64]  # of rows of ALL_SETTINGS, or of (c,) tiles, as they are compiled


class TaskProgram(NamedTuple):
    """A program, and the models that choose options for it."""

    graph: DecisionGraph
    space: Space
    policy: Policy
    ranker: ChoiceRanker
    seed: int


def portfolio(seen: Times) -> Order:
    """Order settings by what each adds to the default and those before it.

    Args:
        seen: Runtimes (p, 96) of programs to learn from, each of which takes its fastest. Of
            settings that add nothing, the better on average comes first.
    """
    best, mean, order = np.ones((len(seen), 1)), seen.mean(axis=0), [0]
    for _ in range(BUDGETS[-1]):
        after = np.minimum(best, seen).mean(axis=0) + 1e-6 * mean
        after[order] = np.inf
        order.append(int(after.argmin()))
        best = np.minimum(best, seen[:, order[-1:]])
    return np.array(order)


def follow(search: Search, runtime: Times, rows: Callable[[Choices], Order]) -> Order:
    """Return the distinct rows of a table that a search visits, in their order.

    Args:
        search: Search that is sent runtimes of the table.
        runtime: Runtimes (c,) of the table.
        rows: Function from settings (b, g) to rows (b,) of the table.
    """
    found: list[int] = []
    settings = next(search)
    try:
        while True:
            visited = rows(settings)
            found += visited.tolist()
            settings = search.send(runtime[visited])
    except StopIteration:
        return np.array([*dict.fromkeys(found)])


def orders(subject: TaskProgram, table: OptionTable, others: Times) -> dict[str, Order]:
    """Return the rows of ALL_SETTINGS as each way compiles them.

    Args:
        subject: Program and models.
        table: Measured runtimes of the program.
        others: Runtimes (p, 96) of other programs, for the portfolio.
    """
    graph, space, policy, ranker, seed = subject

    def guide(settings: Choices) -> Order:
        return np.argsort(ranker.score(graph, settings), kind="stable")

    def genetic(first: Choices, guide: Guide | None = None) -> Order:
        rng = generator(seed, "genetic", graph.name)
        search = genetic_search(space, MAX_CHILDREN, rng, first=first, guide=guide)
        return follow(search, table.seen, rows_of)

    drawn = draw_choices(space, 1 + BUDGETS[-1], generator(seed, "random", graph.name))
    with torch.no_grad():
        decided = policy(graph, given(torch.from_numpy(ALL_SETTINGS)))
    go = go_search(policy, graph, 1 + BUDGETS[-1], seed=seed)
    default = ALL_SETTINGS[:1]
    return {
        "random": rows_of(drawn),
        MENU: np.array([*dict.fromkeys([*rows_of(ALONE_FIRST), *rows_of(drawn)])]),
        AS_OPTIMIZE: genetic(np.concatenate([default, ALONE_FIRST])),
        "genetic": genetic(default),
        "portfolio": portfolio(others),
        "guided": genetic(default, guide),
        "ranked": guide(ALL_SETTINGS),
        "zero-shot": np.argsort(-decided.log_probs.sum(dim=1).numpy(), kind="stable"),
        "fine-tuned": follow(go, table.seen, rows_of),
    }


def curve(order: Order, table: OptionTable) -> list[float]:
    """Return the verified time of the best after each of BUDGETS compiles."""
    rows = np.array([0, *order[order != 0]])
    best = [rows[table.seen[rows[: 1 + budget]].argmin()] for budget in BUDGETS]
    return table.unseen[best].tolist()


def judged(tables: dict[str, OptionTable], seed: int) -> dict[str, Any]:
    """Follow all ways on each program, after learning from the families of the other folds."""
    family = {program: FAMILIES.get(program, program) for program in tables}
    families = generator(seed, "folds").permutation(sorted({*family.values()}))
    found: dict[str, Any] = {}
    for held_out in np.array_split(families, FOLDS):
        train_on = [program for program in tables if family[program] not in held_out]
        feats = [tables[program].description.arrays["node_feat"] for program in train_on]
        scaler = fit_node_scaler(feats, scaling=SCALING)
        graphs = {
            name: decision_graph(name, own.description, scaler) for name, own in tables.items()
        }
        learn_from = [graphs[program] for program in train_on]
        policy, ranker = train_policy(learn_from, tables, seed=seed), ChoiceRanker(CONFIG)
        tried = [Tried(name, ALL_SETTINGS, tables[name].seen) for name in train_on]
        fit_ranker(ranker, learn_from, tried, steps=RANKER_STEPS, seed=seed)
        others = np.stack([tables[program].seen for program in train_on])
        for program in tables.keys() - set(train_on):
            table = tables[program]
            space = Space(table.description.n_options, table.description.groups)
            subject = TaskProgram(graphs[program], space, policy, ranker, seed)
            compiled = orders(subject, table, others)
            found[program] = {way: curve(order, table) for way, order in compiled.items()}
            found[program] |= {"all": table.unseen[table.seen.argmin()], "same": table.same}
    return found


def run_options(seeds: Sequence[int], out: Path) -> None:
    """Measure and judge; writes OUT/options-SEED.json of each seed, unless it is there."""
    missing = [seed for seed in seeds if not (out / f"options-{seed}.json").exists()]
    tables = {program: measure_options(program, out) for program in PROGRAMS if missing}
    for seed in missing:
        with torch_prepared(threads=1, device=CPU, seed=seed):
            programs = judged(tables, seed)
        facts = dict(tables[PROGRAMS[0]].description.facts)
        found = {"revision": revision(), "facts": facts, "programs": programs}
        write_text(out / f"options-{seed}.json", json.dumps(found, indent=1) + "\n")


def options_section(out: Path) -> str | None:
    """Return the page's section on options; None where no seed was judged."""
    seeds = _read(out, "options")
    if not seeds:
        return None
    names = sorted(set.intersection(*(set(seed["programs"]) for seed in seeds)))
    families = [FAMILIES.get(name, name) for name in names]

    def values(key: str) -> Times:  # (p, s) or (p, s, budgets)
        return np.array([[seed["programs"][name][key] for seed in seeds] for name in names])

    def estimates(curves: Times) -> list[Estimate]:
        return [estimate(at, families) for at in np.moveaxis(curves, 2, 0)]

    return render(
        "optimize_options",
        curves={way: estimates(values(way)) for way in WAYS},
        beside={way: estimates(values(way) - values(MENU)) for way in WAYS if way != MENU},
        every=estimate(values("all"), families),
        same=values("same"),
        counts={"programs": len(names), "families": len(set(families)), "seeds": len(seeds)},
        settings={"folds": FOLDS, "rounds": N_ROUNDS},
        budgets=BUDGETS,
        facts=seeds[0]["facts"],
        revision=seeds[0]["revision"],
    )


def needed(order: Order, runtime: Times) -> int:
    """Return how many of a kernel's tiles (c,) are compiled until one is near the best."""
    return int(np.argmax(runtime[order] <= NEAR * runtime.min())) + 1


def best_so_far(order: Order, runtime: Times) -> Times:
    """Return the slowdown of the best after each of BUDGETS compiles."""
    best = np.minimum.accumulate(runtime[order]) / runtime.min()
    return best[np.minimum(BUDGETS, len(best)) - 1]


def judge(scores: NDArray[np.float32], runtime: Times, rng: np.random.Generator) -> dict[str, Any]:
    """Follow each of ORDERS on one kernel's distinct tiles (c,).

    The genetic search begins with any tile. The guided one is that of `optimize --run`: a quarter
    of what may be compiled by the ranker's order, which then picks among the children.
    """
    n_tiles, ranked = len(runtime), np.argsort(scores, kind="stable")
    space = Space(np.array([n_tiles]), np.zeros(1, np.int64))

    def guide(tiles: Choices) -> Order:
        return np.argsort(scores[tiles[:, 0]], kind="stable")

    def whole(search: Search) -> Order:
        order = follow(search, runtime, lambda tiles: tiles[:, 0])
        return np.array([*dict.fromkeys([*order, *range(n_tiles)])])

    any_tile, quarter = rng.integers(n_tiles, size=(1, 1)), ranked[: BUDGETS[-1] // 4, None]
    genetic = genetic_search(space, CHILDREN * n_tiles, rng, first=any_tile)
    guided = genetic_search(space, n_tiles, rng, first=quarter, guide=guide)
    orders = (
        *(rng.permutation(n_tiles), whole(genetic)),
        *(ranked, whole(guided)),
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
    cell, families = Cell("tile-folds", DEFAULT, seed), sample_families(sources.sample)
    found = {}
    for part in TASKS[cell.task].parts(sources, seed, out):
        ranker = train_ranker(cell, part, out / "work" / part.name)
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
    seeds = _read(out, "tiles")
    if not seeds:
        return None
    names = sorted(set.intersection(*map(set, seeds)))
    families = [seeds[0][name]["family"] for name in names]

    def values(kind: str, order: str) -> Times:  # (g, s) or (g, s, budgets)
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


def _read(out: Path, what: str) -> list[dict[str, Any]]:
    """Return what was found with each seed."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(out.glob(f"{what}-*.json"))]
