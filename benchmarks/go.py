"""Judge the policy of GO as an order in which `optimize` could try barriers.

`python -m benchmarks.go --out runs/go` measures missing programs of the catalogue, and then writes
docs/results/go.md. Each program has a table of single edits: the time with a barrier after one
node, over the default's. `--minutes` ends the measurement early, and the page has the programs that
are done.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from jax import numpy as jnp
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from torch import Tensor
from torch.nn.functional import one_hot
from torch.nn.utils import clip_grad_norm_

from autotune.measure.journal import Visitor, open_journal
from autotune.measure.program import Description
from autotune.measure.timing import CPU as CLOCK
from autotune.measure.timing import time_visit
from autotune.measure.worker import Session
from autotune.optimize.strategies import menu
from autotune.programs.catalogue import rows
from autotune.spaces import open_program
from benchmarks import errors_in_one_line, interval_text, resumable_parser, write_page
from benchmarks.go_policy import DecisionGraph, Policy, decision_graph
from common.errors import OutOfTime
from common.files import write_text
from common.metrics import DRAWS, interval_of
from common.progress import time_limit
from common.reproducibility import generator
from features.scaling import fit_node_scaler
from models.layout.network import N_OPCODES
from models.training.device import CPU, torch_prepared

N_ROUNDS = 3
# Larger programs have only this number of random edits.
MAX_EDITS = 48
SPACES = ("options", "fusion")
N_FOLDS, N_SEEDS, N_STEPS, ENTROPY = 5, 2, 150, 0.05
RIDGE_ALPHAS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
# An edit is as good as the best one within 1 %. Tries count in programs that an edit speeds up.
CLOSE, MAX_RATIO = 1.01, 0.98
# A failed edit counts as 100 times slower than the default: its reward is GO's, -10.
FAILED_RATIO = 100.0
N_STUDY_ROUNDS = 9
OVER_MENU = "best edit of GO / best of the menu, at equal measurements"
RESULTS = "results.json"


class EditTable(NamedTuple):
    """The measured edits of a program.

    Attributes:
        nodes: Positions of the nodes with a barrier among the knobs of fusion, (e,).
        edit_ratios: Time with each barrier over the default's, (e,). inf failed.
        menu_ratios: The same of the menu's settings of options, (m,).
    """

    description: Description
    nodes: NDArray[np.int64]
    edit_ratios: NDArray[np.float64]
    menu_ratios: NDArray[np.float64]


Example = tuple[DecisionGraph, EditTable]
# The scores of the edits of a graph, (e,). The highest is tried first.
Scores = Callable[[DecisionGraph], Tensor]


def programs() -> list[str]:
    """Return the smallest program of each family of the catalogue, training steps last."""
    ordered = sorted(rows(), key=lambda row: [int(row[key] or 0) for key in ("depth", "batch")])
    ordered.sort(key=lambda row: bool(row["training"]))
    by_family = {row["family"]: row["program"] for row in reversed(ordered)}
    return [*dict.fromkeys(by_family[row["family"]] for row in ordered)]


def measure_edits(program: str, out: Path) -> EditTable:
    """Measure the edits of a program in rounds.

    Args:
        out: Folder of journals. The same call resumes.

    Raises:
        OutOfTime: The time limit came before the last visit.
    """
    opener = partial(open_program, program, SPACES, "cpu")
    with Session(opener, timeout_s=60, label=program) as session:
        description = session.describe()
        place, n_knobs = description.slices["fusion"], len(description.n_options)
        rng = generator(0, "edits", program)
        nodes = np.sort(rng.permutation(place.stop - place.start)[:MAX_EDITS])
        options = np.minimum(menu(), description.n_options[description.slices["options"]] - 1)
        settings = np.zeros((2 + len(options) + len(nodes), n_knobs), np.int64)
        settings[2 : 2 + len(options), description.slices["options"]] = options
        settings[2 + len(options) + np.arange(len(nodes)), place.start + nodes] = 1
        header = {"program": program, "stage": "edits", **description.facts}
        journal = open_journal(out / f"{program}.jsonl", header)
        visitor = Visitor(session, journal, label=program, total=len(settings), n_visits=N_ROUNDS)
        rounds_ns = np.empty((N_ROUNDS, len(settings)))
        for turn in range(N_ROUNDS):
            for number in rng.permutation(len(settings)).tolist():
                rounds_ns[turn, number] = visitor.visit(number, 1 + turn, settings[number])
    # The default is compared with the mean of its two visits in the same round.
    default_ns = rounds_ns[:, :2].mean(axis=1, keepdims=True)
    ratios = np.median(rounds_ns[:, 2:] / default_ns, axis=0)
    return EditTable(description, nodes, ratios[len(options) :], ratios[: len(options)])


def advantages(table: EditTable) -> Tensor:
    """Return the rewards of GO (Zhou et al., NeurIPS 2020) of the edits, standardised, (e,)."""
    rewards = -torch.from_numpy(table.edit_ratios).clamp(max=FAILED_RATIO).sqrt().float()
    return (rewards - rewards.mean()) / rewards.std().clamp(min=1e-3)


def train_policy(train: Sequence[Example], seed: int) -> Scores:
    """Train a policy.

    Its probabilities of the single edits are a softmax of the logits. All of their rewards are
    known, so the gradient of the mean reward is exact, where PPO would draw settings.
    """
    with torch_prepared(threads=1, device=CPU, seed=seed):
        policy = Policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        for step in range(N_STEPS):
            graph, table = train[step % len(train)]
            scores = policy(graph).log_softmax(dim=0)
            loss = -(scores.exp() * (advantages(table) - ENTROPY * scores)).sum()
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    return torch.no_grad()(policy)


def train_ridge(train: Sequence[Example], seed: int) -> Scores:
    """Train a ridge regression on the operation and the features of the node of an edit."""
    del seed

    def columns(graph: DecisionGraph) -> Tensor:
        kinds = one_hot(graph.opcode[graph.nodes], N_OPCODES)
        return torch.cat([kinds, graph.node_feat[graph.nodes]], dim=1)

    x = torch.cat([columns(graph) for graph, _ in train])
    ridge = RidgeCV(RIDGE_ALPHAS).fit(x, torch.cat([advantages(table) for _, table in train]))
    return lambda graph: torch.from_numpy(ridge.predict(columns(graph)))


def learned_orders(
    learn: Callable[[Sequence[Example], int], Scores], tables: Mapping[str, EditTable], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Return an order of the edits of each program, by a model that has not learned it."""
    names, orders = sorted(tables), {}
    for fold in range(N_FOLDS):
        held_out = names[fold::N_FOLDS]
        train = [name for name in names if name not in held_out]
        features = [tables[name].description.arrays["node_feat"] for name in train]
        scaler = fit_node_scaler(features, scaling="log1p-standardise")
        examples = {}
        for name, table in tables.items():
            nodes = table.description.knobs["fusion"].nodes[table.nodes]
            examples[name] = decision_graph(table.description, nodes, scaler), table
        scores_of = learn([examples[name] for name in train], seed)
        for name in held_out:
            orders[name] = scores_of(examples[name][0]).argsort(descending=True).numpy()
    return orders


def n_tries(ratios: NDArray[np.float64], order: NDArray[np.int64]) -> int:
    """Return the number of edits until one is within 1 % of the best, in an order (e,)."""
    return int(np.argmax(ratios[order] <= CLOSE * ratios.min())) + 1


def n_random_tries(ratios: NDArray[np.float64]) -> float:
    """Return the mean of `n_tries` over all orders, (e + 1) / (k + 1) with k good edits."""
    return (len(ratios) + 1) / (1 + int((ratios <= CLOSE * ratios.min()).sum()))


def with_interval(
    values: NDArray[np.float64], mean: Callable[..., NDArray[np.float64]] = np.mean
) -> list[float]:
    """Return a mean or median, and its bootstrap interval."""
    drawn = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    return [float(mean(values)), *interval_of(mean(values[drawn], axis=1))]


def verdict_rows(tables: Mapping[str, EditTable]) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Return a row per program, and means over programs with their intervals."""
    orders = [
        [learned_orders(learn, tables, seed) for seed in range(n_seeds)]
        for learn, n_seeds in ((train_policy, N_SEEDS), (train_ridge, 1))
    ]
    program_rows, tries, over_menu = [], [], []
    for name, table in sorted(tables.items()):
        ratios, n_first = table.edit_ratios, len(table.menu_ratios)
        menu_ratio = table.menu_ratios.min()
        firsts = [np.mean([ratios[o[name][:n_first]].min() for o in by_seed]) for by_seed in orders]
        learned = [np.mean([n_tries(ratios, o[name]) for o in by_seed]) for by_seed in orders]
        over_menu.append(np.array(firsts) / menu_ratio)
        counts = [*learned, n_random_tries(ratios)]
        tries += [counts] if ratios.min() < MAX_RATIO else []
        texts = [f"{ratio:.3f}" for ratio in (ratios.min(), menu_ratio, *firsts)]
        program_rows.append([name, str(len(ratios)), *texts, *(f"{count:.1f}" for count in counts)])
    (policy, ridge, chance), (policy_menu, ridge_menu) = np.array(tries).T, np.array(over_menu).T
    means = {
        "tries of GO": policy,
        "tries of the ridge": ridge,
        "tries at random": chance,
        "tries of GO - tries at random": policy - chance,
        "tries of GO - tries of the ridge": policy - ridge,
        OVER_MENU: policy_menu,
        "best edit of the ridge / best of the menu, at equal measurements": ridge_menu,
    }
    return program_rows, {text: with_interval(values) for text, values in means.items()}


def cartpole(state: Any, forces: Any, *, unroll: int = 1, has_tuple: bool = False) -> Any:
    """Simulate carts with poles, (4, e) of e environments, under forces (t, e) of t steps."""

    def step(state: Any, force: Any) -> Any:
        _, speed, angle, turn = state
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        push = (force + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        rates = (speed, moving, turn, turning)
        parts = tuple(part + 0.02 * rate for part, rate in zip(state, rates, strict=True))
        state = parts if has_tuple else jnp.concatenate([part[None] for part in parts])
        return state, parts[2]

    return jax.lax.scan(step, tuple(state) if has_tuple else state, forces, unroll=unroll)[1]


def cartpole_ratios(n_environments: int) -> dict[str, list[float]]:
    """Return the median time of each variant over the plain scan's, of interleaved rounds."""
    variants: dict[str, dict[str, Any]] = {f"unroll by {n}": {"unroll": n} for n in (4, 16)}
    variants |= {"a tuple, no concatenate": {"has_tuple": True}, "the same again": {}}
    rng = np.random.default_rng(0)
    shapes = (4, n_environments), (256, n_environments)
    arguments = [jax.device_put(0.1 * rng.normal(size=shape).astype("f")) for shape in shapes]
    calls = [jax.jit(partial(cartpole, **kinds)) for kinds in ({}, *variants.values())]
    for call in calls:
        np.testing.assert_allclose(call(*arguments), calls[0](*arguments), rtol=1e-3, atol=1e-3)
    runs = [partial(lambda f: jax.block_until_ready(f(*arguments)), call) for call in calls]
    times = [[time_visit(run, CLOCK).runtime_ns for run in runs] for _ in range(N_STUDY_ROUNDS)]
    ratios = np.array(times)[:, 1:] / np.array(times)[:, :1]  # (r, variants)
    texts = (f"{n_environments}, {variant}" for variant in variants)
    return {
        text: with_interval(column, np.median) for text, column in zip(texts, ratios.T, strict=True)
    }


def measure(out: Path, minutes: float | None = None) -> dict[str, Any]:
    """Measure missing programs, train policies, and write OUT/results.json.

    Returns:
        The environment, a row per program, and named means and ratios with their intervals.
    """
    done = dict[str, EditTable]()
    with time_limit(minutes), suppress(OutOfTime):
        for program in programs():
            done[program] = measure_edits(program, out)
    # This process times one thread, like its workers. JAX reads the flags at its first array.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    rows, means = verdict_rows(done)
    environment = next(iter(done.values())).description.facts
    results = {"environment": environment, "programs": rows, "means": means}
    results["cartpole"] = cartpole_ratios(16) | cartpole_ratios(2048)
    write_text(out / RESULTS, json.dumps(results))
    return results


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure missing programs, train policies and write the page."""
    parser = resumable_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="time limit of the measurement")
    options = parser.parse_args(arguments)
    results = measure(options.out, options.minutes)
    for key in ("means", "cartpole"):
        results[key] = [[name, interval_text(*values)] for name, values in results[key].items()]
    write_page("go", options.report, **results)


if __name__ == "__main__":
    main()
