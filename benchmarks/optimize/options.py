"""What chooses the compiler options of programs of families never seen, by the number of compiles.

A program has 96 choices. All are measured once, in rounds, so that any way to choose is followed by
looking up what a compile would have told. A way sees the first half of the rounds; of what it has
compiled, the default included, the fastest there is reported by the second half, which no way sees.
"""

import copy
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import go, render
from benchmarks.accuracy.report import Estimate, estimate
from benchmarks.optimize.tiles import BUDGETS
from common.atomic import write_text
from common.reproducibility import generator, revision
from data.collect.measuring.search import Choices, Space
from data.collect.measuring.worker import Description
from data.collect.spaces.options import N_OPTIONS, menu
from features.scaling import fit_node_scaler
from models.go.graph import DecisionGraph, decision_graph
from models.go.network import Policy, PolicyConfig, given, likeliest
from models.go.ppo import PpoConfig, Tried, train
from models.go.rewards import ChoiceRanker, MeasuredReward, fit_ranker
from models.training.device import CPU, torch_prepared

USERS = (  # functions of user_programs.py
    *("transformer", "n_body", "mixer", "elementwise", "lstm"),
    *("mlp_step", "batch_norm", "stencil", "convolution", "attention"),
)
PROGRAMS = (
    *(f"benchmarks.optimize.user_programs:{name}" for name in USERS),
    *("autoencoder_b4", "vae_b32", "points_b16", "dilated_b1", "recommender_b64", "two_tower_b8"),
)
FAMILIES = {PROGRAMS[0]: "attention", PROGRAMS[9]: "attention"}  # any other is a family of its own
EVERY = np.indices(N_OPTIONS.tolist()).reshape(len(N_OPTIONS), -1).T  # (96, g), the default first
ROUNDS = 6
FOLDS = 3
CONFIG = PolicyConfig(tasks={"options": int(N_OPTIONS.max())})
RANKER_STEPS = 400
# A policy that is sure draws what it has drawn: hence more entropy than for fusion.
PRE_TRAINING = PpoConfig(steps=300, entropy=0.2)
FINE_TUNING = PpoConfig(steps=15, choices=8, entropy=0.2)
MENU, AS_OPTIMIZE = "menu, then random", "menu, then genetic"
ALONE_FIRST = menu()[np.argsort((menu() > 0).sum(axis=1), kind="stable")]  # as before `portfolio`
WAYS = (
    *("random", MENU, AS_OPTIMIZE, "genetic", "portfolio"),
    *("guided", "ranked", "zero-shot", "fine-tuned"),
)
Times = NDArray[np.float64]


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


def measured(program: str, out: Path) -> Table:
    """Measure all choices in rounds, the default twice; the same call goes on."""
    choices, rng = np.concatenate([EVERY[:1], EVERY]), generator(0, "options", program)
    rounds_ns = np.empty((ROUNDS, len(choices)))
    with go.opened(program, "options") as session:
        known, visit = go.measuring(session, program, "options", out)
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


def portfolio(seen: Times) -> NDArray[np.int64]:
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


def fine_tuned(subject: go.Subject, reward: MeasuredReward) -> None:
    """Take what the policy holds likeliest, then draws of it; it learns from what was measured."""
    policy = copy.deepcopy(subject.policy)
    with torch.no_grad():
        reward(subject.graph, policy(subject.graph, likeliest).choices.numpy())
    train(policy, [subject.graph], reward, FINE_TUNING, seed=subject.seed)


SEARCHES: dict[str, Callable[[go.Subject, MeasuredReward], None]] = {
    "random": go.random,
    "genetic": go.genetic,
    AS_OPTIMIZE: partial(go.genetic, first=np.concatenate([EVERY[:1], ALONE_FIRST])),
    "guided": go.guided,
    "fine-tuned": fine_tuned,
}


def orders(subject: go.Subject, table: Table, others: Times) -> dict[str, NDArray[np.int64]]:
    """Return the rows of EVERY as each way compiles them; `others` as of `portfolio`."""
    found = {}
    for name, way in SEARCHES.items():
        reward = MeasuredReward(lambda _, __, choice: float(table.seen[row(choice)]), subject.start)
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


def curve(order: NDArray[np.int64], table: Table) -> list[float]:
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
            table, start = tables[program], np.zeros(len(N_OPTIONS), np.int64)
            space = Space(table.known.n_options, table.known.groups)
            subject = go.Subject(graphs[program], space, *models, seed, start, BUDGETS[-1])
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
    seeds = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("options-*.json"))]
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
