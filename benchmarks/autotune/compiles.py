"""What chooses compiler options and tiles, of families never seen, by the number of compiles.

All choices were measured, so that any way to choose is followed by looking up what a compile would
have told. Of compiler options a program has 96 choices, measured once, in rounds. A way sees the
first half of these; of what it has compiled, the default included, the fastest there is reported by
the second half, which no way sees. The sample's kernels have c distinct tiles, and what is asked is
how many compiles it takes to come within 5 % of the best known one.
"""

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.go.network import (
    DecisionGraph,
    Policy,
    PolicyConfig,
    decision_graph,
    given,
    likeliest,
)
from autotune.go.ppo import ChoiceRanker, MeasuredReward, PpoConfig, Tried, fit_ranker, train
from autotune.measure.search import (
    Guide,
    Search,
    Visitor,
    genetic_search,
    open_journal,
)
from autotune.measure.worker import Description, Session
from autotune.spaces import menu, open_decided
from benchmarks import render
from benchmarks.accuracy.cells import DEFAULT, Cell, train_ranker
from benchmarks.accuracy.report import Estimate, estimate
from benchmarks.accuracy.tasks import TASKS, Sources, sample_families
from common.files import write_text
from common.reproducibility import generator, revision
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import TileGraph, distinct_configs, group_means
from data.hlo.choices import Choices, Space, draw_choices
from data.hlo.compiler_options import N_OPTIONS
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
EVERY = np.indices(N_OPTIONS.tolist()).reshape(len(N_OPTIONS), -1).T  # (96, g), the default first
ROUNDS = 6
FOLDS = 3
CONFIG = PolicyConfig(tasks={"options": int(N_OPTIONS.max())})
RANKER_STEPS = 400
BATCH = 8  # choices per call of the ways that draw at random
MAX_CHILDREN = 200  # equal ones are compiled once
# A policy that is sure repeats its draws: hence more entropy than usual.
PRE_TRAINING = PpoConfig(steps=300, entropy=0.2)
FINE_TUNING = PpoConfig(steps=15, choices=8, entropy=0.2)
MENU, AS_OPTIMIZE = "menu, then random", "menu, then genetic"
ALONE_FIRST = menu()[np.argsort((menu() > 0).sum(axis=1), kind="stable")]  # as before `portfolio`
WAYS = (
    *("random", MENU, AS_OPTIMIZE, "genetic", "portfolio"),
    *("guided", "ranked", "zero-shot", "fine-tuned"),
)
NEAR = 1.05  # the best tile
CHILDREN = 4  # of the genetic search, for each tile that there is
ORDERS = ("random", "genetic", "ranker", "guided")
Times = NDArray[np.float64]
Order = NDArray[np.int64]  # of rows of EVERY, or of (c,) tiles, as they are compiled


class Table(NamedTuple):
    """Times of EVERY choice over the default's, (96,), in both halves of the rounds; inf: failed.

    `same` is the default over itself in the second half.
    """

    known: Description
    seen: Times
    unseen: Times
    same: float


def row(choices: Choices) -> NDArray[np.int64]:
    """Return where choices (…, g) stand in EVERY."""
    return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(choices, -1, 0)), N_OPTIONS.tolist()))


class TaskProgram(NamedTuple):
    """A program, and what may choose options for it."""

    graph: DecisionGraph
    space: Space
    policy: Policy
    ranker: ChoiceRanker
    seed: int


def measured(program: str, out: Path) -> Table:
    """Measure all choices in rounds, the default twice; the same call resumes."""
    choices, rng = np.concatenate([EVERY[:1], EVERY]), generator(0, "options", program)
    rounds_ns = np.empty((ROUNDS, len(choices)))
    with Session(partial(open_decided, program, ("options",), None), timeout_s=60) as session:
        known = session.describe()
        header = {"program": program, "stage": "options", **known.facts}
        journal = open_journal(out / f"{program}-options.jsonl", header)
        visit = Visitor(session, journal, what=f"{program}: options", total=0).visit
        for turn in range(ROUNDS):
            for number in rng.permutation(len(choices)).tolist():
                rounds_ns[turn, number] = visit(number, 1 + turn, choices[number])
    return tabled(known, rounds_ns)


def tabled(known: Description, rounds_ns: Times) -> Table:
    """Summarise rounds (r, 1 + 96) of the default and EVERY choice by medians of either half.

    What choices are compared with is the mean of the two visits to the default in their round.
    """
    seen, unseen = (
        np.median(half[:, 1:] / half[:, :2].mean(axis=1, keepdims=True), axis=0)
        for half in np.split(rounds_ns, 2)
    )
    same = float(np.median(np.divide(*rounds_ns[len(rounds_ns) // 2 :, [1, 0]].T)))
    seen[0] = unseen[0] = 1.0
    return Table(known, seen, unseen, same)


def portfolio(seen: Times) -> Order:
    """Order choices by what each adds to the default and those before it.

    Args:
        seen: (p, 96) of programs to learn from, each of which takes its fastest; of choices that
            add nothing, the better on average comes first.
    """
    best, mean, order = np.ones((len(seen), 1)), seen.mean(axis=0), [0]
    for _ in range(BUDGETS[-1]):
        after = np.minimum(best, seen).mean(axis=0) + 1e-6 * mean
        after[order] = np.inf
        order.append(int(after.argmin()))
        best = np.minimum(best, seen[:, order[-1:]])
    return np.array(order)


def random(subject: TaskProgram, reward: MeasuredReward) -> None:
    """Change a random share of the options."""
    rng = generator(subject.seed, "random", subject.graph.name)
    choices = draw_choices(subject.space, 1 + BUDGETS[-1], rng)
    for start in range(1, len(choices), BATCH):
        reward(subject.graph, choices[start : start + BATCH])


def genetic(
    subject: TaskProgram,
    reward: MeasuredReward,
    guide: Guide | None = None,
    first: Choices | None = None,
) -> None:
    """Cross and change the fastest choices; what is compiled beyond the budget does not count."""
    rng = generator(subject.seed, "genetic", subject.graph.name)
    search = genetic_search(subject.space, MAX_CHILDREN, rng, first=first, guide=guide)
    choices = next(search)
    with suppress(StopIteration):
        while len(reward.ratios) <= BUDGETS[-1]:
            choices = search.send(reward(subject.graph, choices))


def guided(subject: TaskProgram, reward: MeasuredReward) -> None:
    """Let the ranker pick among the children, as `optimize --run` does."""

    def guide(choices: Choices) -> Order:
        return np.argsort(subject.ranker.score(subject.graph, choices), kind="stable")

    genetic(subject, reward, guide)


def fine_tuned(subject: TaskProgram, reward: MeasuredReward) -> None:
    """Take the policy's likeliest choice, then draws of the policy, which learns from each."""
    policy = copy.deepcopy(subject.policy)
    with torch.no_grad():
        reward(subject.graph, policy(subject.graph, likeliest).choices.numpy())
    train(policy, [subject.graph], reward, FINE_TUNING, seed=subject.seed)


SEARCHES: dict[str, Callable[[TaskProgram, MeasuredReward], None]] = {
    "random": random,
    "genetic": genetic,
    AS_OPTIMIZE: partial(genetic, first=np.concatenate([EVERY[:1], ALONE_FIRST])),
    "guided": guided,
    "fine-tuned": fine_tuned,
}


def orders(subject: TaskProgram, table: Table, others: Times) -> dict[str, Order]:
    """Return the rows of EVERY as each way compiles them; `others` as of `portfolio`."""
    found = {}
    for name, way in SEARCHES.items():
        reward = MeasuredReward(lambda _, __, choice: float(table.seen[row(choice)]), EVERY[0])
        way(subject, reward)
        found[name] = row(np.array([*reward.ratios]))
    with torch.no_grad():
        decided = subject.policy(subject.graph, given(torch.from_numpy(EVERY)))
    likely = decided.log_probs.sum(dim=1).numpy()
    return {
        **found,
        MENU: np.array([*dict.fromkeys([*row(ALONE_FIRST), *found["random"]])]),
        "portfolio": portfolio(others),
        "ranked": np.argsort(subject.ranker.score(subject.graph, EVERY), kind="stable"),
        "zero-shot": np.argsort(-likely, kind="stable"),
    }


def curve(order: Order, table: Table) -> list[float]:
    """Return the verified time of the best after each of BUDGETS compiles of rows of EVERY."""
    rows = np.array([0, *order[order != 0]])
    best = [rows[table.seen[rows[: 1 + budget]].argmin()] for budget in BUDGETS]
    return table.unseen[best].tolist()


def learned(
    graphs: Sequence[DecisionGraph], tables: dict[str, Table], seed: int
) -> tuple[Policy, ChoiceRanker]:
    """Train a policy and a ranker on what was measured of programs."""
    policy, ranker = Policy(CONFIG), ChoiceRanker(CONFIG)
    tried = [Tried(graph.name, EVERY, tables[graph.name].seen) for graph in graphs]
    fit_ranker(ranker, graphs, tried, steps=RANKER_STEPS, seed=seed)

    def reward(graph: DecisionGraph, choices: Choices) -> Times:
        return tables[graph.name].seen[row(choices)]

    train(policy, graphs, reward, PRE_TRAINING, seed=seed)
    return policy, ranker


def judged(tables: dict[str, Table], seed: int) -> dict[str, Any]:
    """Follow all ways on each program, after learning from the families of the other folds."""
    family = {program: FAMILIES.get(program, program) for program in tables}
    families = generator(seed, "folds").permutation(sorted({*family.values()}))
    found: dict[str, Any] = {}
    for held_out in np.array_split(families, FOLDS):
        train_on = [program for program in tables if family[program] not in held_out]
        feats = [tables[program].known.arrays["node_feat"] for program in train_on]
        scaler = fit_node_scaler(feats, scaling="log1p-standardise")
        graphs = {name: decision_graph(name, own.known, scaler) for name, own in tables.items()}
        models = learned([graphs[program] for program in train_on], tables, seed)
        others = np.stack([tables[program].seen for program in train_on])
        for program in tables.keys() - set(train_on):
            table = tables[program]
            space = Space(table.known.n_options, table.known.groups)
            subject = TaskProgram(graphs[program], space, *models, seed)
            compiled = orders(subject, table, others)
            found[program] = {way: curve(order, table) for way, order in compiled.items()}
            found[program] |= {"all": table.unseen[table.seen.argmin()], "same": table.same}
    return found


def run_options(seeds: Sequence[int], out: Path) -> None:
    """Measure and judge; writes OUT/options-SEED.json of each seed, unless it is there."""
    missing = [seed for seed in seeds if not (out / f"options-{seed}.json").exists()]
    tables = {program: measured(program, out) for program in PROGRAMS if missing}
    for seed in missing:
        with torch_prepared(threads=1, device=CPU, seed=seed):
            programs = judged(tables, seed)
        known = tables[PROGRAMS[0]].known
        found = {"revision": revision(), "facts": dict(known.facts), "programs": programs}
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
        settings={"folds": FOLDS, "rounds": ROUNDS},
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


def followed(search: Search, runtime: Times) -> Order:
    """Follow a search of one gene to its end; what it left out is compiled last."""
    found: list[int] = []
    tiles = next(search)
    try:
        while True:
            found += tiles[:, 0].tolist()
            tiles = search.send(runtime[tiles[:, 0]])
    except StopIteration:
        return np.array([*dict.fromkeys([*found, *range(len(runtime))])])


def judge(scores: NDArray[np.float32], runtime: Times, rng: np.random.Generator) -> dict[str, Any]:
    """Follow each of ORDERS on one kernel's distinct tiles (c,).

    The genetic search begins with any tile. The guided one is that of `optimize --run`: a quarter
    of what may be compiled by the ranker's order, which then picks among the children.
    """
    n_tiles, ranked = len(runtime), np.argsort(scores, kind="stable")
    space = Space(np.array([n_tiles]), np.zeros(1, np.int64))

    def guide(tiles: Choices) -> Order:
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
