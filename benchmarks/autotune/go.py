"""What GO's policy knows of fusing programs of families that it has not seen.

`python -m benchmarks.autotune.go --out runs/go` starts from unfused programs: a gene says of an
instruction whether it is kept apart. A ranker learns from random choices of the train programs, the
policy from the ranker. Then each way to choose may compile as many choices of a held-out program;
the best of the first 8 and 32 is measured again in a fresh process, beside the compiler's own
fusion:
OUT/seed-S/PROGRAM.json has these ratios. The same call goes on with what was measured.
"""

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from autotune.go.network import (
    DecisionGraph,
    Policy,
    PolicyConfig,
    decision_graph,
    drawn,
    likeliest,
)
from autotune.go.ppo import (
    ChoiceRanker,
    Choices,
    MeasuredReward,
    PpoConfig,
    Tried,
    Visit,
    fit_ranker,
    ranked_reward,
    train,
)
from autotune.measure.search import Guide, Visitor, genetic_search, open_journal
from autotune.measure.worker import Description, Session
from autotune.optimize.confirm import Ratio, paired_ratio
from autotune.spaces import open_decided
from benchmarks import PAGES, render, write_page
from common.atomic import alone_in, write_text
from common.errors import PipelineError
from common.metrics import family_means, interval_of, kendall_tau
from common.reproducibility import generator, revision
from data.choices import Space, draw_choices
from features.scaling import fit_node_scaler
from models.training.device import CPU, torch_prepared

TRAIN = ("mlp_b16", "attention_b2", "squeeze_excite_b4", "points_b16")
HELD_OUT = ("autoencoder_b4", "vae_b32", "mixture_b6", "recommender_b64", "perceiver_b1")
BUDGETS = (8, 32)
BATCH = 8
CONFIG = PolicyConfig(tasks={"fusion": 2})
RANKER_STEPS = 400
PRE_TRAINING = PpoConfig(steps=160)
FINE_TUNING = PpoConfig(steps=BUDGETS[-1] // BATCH, choices=BATCH, epochs=4)
ROUNDS = 15
MOST_CHILDREN = 200  # equal ones are compiled once
RANKED = 1_000  # choices that the ranker picks from


class Subject(NamedTuple):
    """A program, and what may choose for it.

    `start` (g,) is the choice to begin with: searches change choices that differ from it by 0.
    """

    graph: DecisionGraph
    space: Space
    policy: Policy
    ranker: ChoiceRanker
    seed: int
    start: Choices
    budget: int


def random(subject: Subject, reward: MeasuredReward) -> None:
    """Change a random share of the genes."""
    rng = generator(subject.seed, "random", subject.graph.name)
    choices = subject.start ^ draw_choices(subject.space, 1 + subject.budget, rng)
    for start in range(1, len(choices), BATCH):
        reward(subject.graph, choices[start : start + BATCH])


def genetic(
    subject: Subject,
    reward: MeasuredReward,
    guide: Guide | None = None,
    first: Choices | None = None,
) -> None:
    """Cross and change the fastest, from the start on; beyond the budget nothing counts."""
    rng = generator(subject.seed, "genetic", subject.graph.name)
    search = genetic_search(subject.space, MOST_CHILDREN, rng, first=first, guide=guide)
    choices = next(search)
    with suppress(StopIteration):
        while len(reward.ratios) <= subject.budget:
            choices = search.send(reward(subject.graph, subject.start ^ choices))


def guided(subject: Subject, reward: MeasuredReward) -> None:
    """Let the ranker pick among the children, as `optimize --run` does."""
    genetic(
        subject,
        reward,
        lambda choices: subject.ranker.score(subject.graph, subject.start ^ choices).argsort(
            kind="stable"
        ),
    )


def all_densities(subject: Subject, reward: MeasuredReward) -> None:
    """Choose at random, from all kept apart to none."""
    reward(subject.graph, _drawn(subject, subject.budget, "train"))


def ranked(subject: Subject, reward: MeasuredReward) -> None:
    """Take the ranker's first of many random choices."""
    choices = _drawn(subject, RANKED, "ranked")
    first = np.argsort(subject.ranker.score(subject.graph, choices), kind="stable")
    for start in range(0, subject.budget, BATCH):
        reward(subject.graph, choices[first[start : start + BATCH]])


def _drawn(subject: Subject, n_choices: int, what: str) -> Choices:
    choices = draw_choices(
        subject.space, n_choices, generator(subject.seed, what, subject.graph.name)
    )
    choices[::2] ^= subject.start
    return choices


def zero_shot(subject: Subject, reward: MeasuredReward) -> None:
    """Take what the policy holds likeliest, and draws of it."""
    draw = drawn(subject.budget - 1, torch.Generator().manual_seed(subject.seed))
    with torch.no_grad():
        choices = [subject.policy(subject.graph, choose).choices for choose in (likeliest, draw)]
    for batch in torch.cat(choices).split(BATCH):
        reward(subject.graph, batch.numpy())


def fine_tuned(subject: Subject, reward: MeasuredReward) -> None:
    """Draw of the policy, which learns from what was measured."""
    policy = copy.deepcopy(subject.policy)
    train(policy, [subject.graph], reward, FINE_TUNING, seed=subject.seed)


WAYS = (random, genetic, guided, ranked, zero_shot, fine_tuned)


def opened(program: str, space: str = "fusion") -> Session:
    """Return a process that measures choices of a program."""
    return Session(partial(open_decided, program, (space,), None), timeout_s=60)


def measuring(session: Session, program: str, stage: str, out: Path) -> tuple[Description, Visit]:
    """Measure through a journal of the stage's own, which the same call goes on with."""
    known = session.describe()
    header = {"program": program, "stage": stage, **known.facts}
    journal = open_journal(out / f"{program}-{stage}.jsonl", header)
    return known, Visitor(session, journal, what=f"{program}: {stage}", total=0).visit


def followed(subject: Subject, stage: str, out: Path, way: Callable[..., None]) -> Tried:
    """Let one way choose; return its choices in the order of compiling."""
    graph = subject.graph
    with opened(graph.name) as session:
        _, visit = measuring(session, graph.name, stage, out)
        reward = MeasuredReward(visit, subject.start)
        way(subject, reward)
    choices, ratios = zip(*[*reward.ratios.items()][1:], strict=True)
    return Tried(graph.name, np.array(choices), np.array(ratios))


def verified(program: str, choices: Choices, out: Path) -> list[Ratio]:
    """Measure choices (b, g) beside the compiler's own fusion; the first ratio is its own."""
    given = np.concatenate([np.zeros((2, choices.shape[1]), np.int64), choices])
    with opened(program) as session:
        _, visit = measuring(session, program, "verify", out)
        rounds = [
            [visit(number, turn, choice) for number, choice in enumerate(given)]
            for turn in range(1, 1 + ROUNDS)
        ]
    default_ns, *others = np.array(rounds).T
    return [paired_ratio(own_ns, default_ns) for own_ns in others]


def judged(subject: Subject, out: Path) -> dict[str, Any]:
    """Let every way choose for a held-out program, and verify its best by budget."""
    graph = subject.graph
    tried = {way.__name__: followed(subject, way.__name__, out, way) for way in WAYS}
    best = {
        (name, budget): own.choices[own.ratios[:budget].argmin()]
        for name, own in tried.items()
        for budget in BUDGETS
    }
    unfused = np.ones((1, graph.n_genes), np.int64)
    rows = np.concatenate([unfused, np.stack([*best.values()])])
    distinct, place = np.unique(rows, axis=0, return_inverse=True)
    same, *ratios = verified(graph.name, distinct, out)
    scores = subject.ranker.score(graph, tried["random"].choices)
    labels = ["unfused", *(f"{name}, {budget} compiles" for name, budget in best)]
    return {
        "ranker_tau": kendall_tau(scores, tried["random"].ratios),
        "default over itself": same._asdict(),
        **{label: ratios[at]._asdict() for label, at in zip(labels, place, strict=True)},
    }


def run(out: Path, seed: int) -> None:
    """Pre-train, follow each way on the held-out programs, and write what was found."""
    subjects: dict[str, Subject] = {}
    known: dict[str, Description] = {}
    for program in (*TRAIN, *HELD_OUT):
        with opened(program) as session:
            known[program] = session.describe()
    feats = [known[program].arrays["node_feat"] for program in TRAIN]
    scaler = fit_node_scaler(feats, scaling="log1p-standardise")
    policy, ranker = Policy(CONFIG), ChoiceRanker(CONFIG)
    for program, own in known.items():
        graph = decision_graph(program, own, scaler)
        space, unfused = Space(own.n_options, own.groups), np.ones(graph.n_genes, np.int64)
        subjects[program] = Subject(graph, space, policy, ranker, seed, unfused, BUDGETS[-1])
    graphs = [subjects[program].graph for program in TRAIN]
    tried = [followed(subjects[program], "train", out, all_densities) for program in TRAIN]
    fit_ranker(ranker, graphs, tried, steps=RANKER_STEPS, seed=seed)
    starts = {program: subjects[program].start for program in TRAIN}
    train(policy, graphs, ranked_reward(ranker.score, starts), PRE_TRAINING, seed=seed)
    for program in HELD_OUT:
        found = judged(subjects[program], out)
        write_text(out / f"{program}.json", json.dumps(found, indent=1) + "\n")


def write_report(out: Path, folder: Path) -> None:
    """Write go.md from the programs that all seeds have verified; PipelineError if it is none."""
    seeds = sorted(out.glob("seed-*"))
    done = [name for name in HELD_OUT if all((seed / f"{name}.json").exists() for seed in seeds)]
    if not seeds or not done:
        raise PipelineError(f"{out}: no program was verified; run without --report first")
    found = [
        [json.loads((seed / f"{name}.json").read_text("utf-8")) for seed in seeds] for name in done
    ]
    labels = ["unfused", *(f"{w.__name__}, {budget} compiles" for w in WAYS for budget in BUDGETS)]
    rows = []
    for label in labels:
        ratios = np.array([[seed[label]["value"] for seed in own] for own in found])  # (p, s)
        low, high = interval_of(family_means(ratios, done))
        means = [f"{value:.3f}" for value in ratios.mean(axis=1)]
        rows.append(
            [label.replace("_", "-"), *means, f"{ratios.mean():.3f} [{low:.3f}, {high:.3f}]"]
        )
    same = [seed["default over itself"]["value"] for own in found for seed in own]
    page = render(
        "go",
        rows=rows,
        header=["way", *done, "mean"],
        n_train=len(TRAIN),
        n_seeds=len(seeds),
        same=(min(same), max(same)),
        revision=revision(),
    )
    write_page(folder / "go.md", page)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with one seed, or write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autotune.go", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/go"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, nargs="?", const=PAGES, help="folder for the page")
    given = parser.parse_args(arguments)
    if given.report:
        write_report(given.out, given.report)
        return
    with alone_in(given.out), torch_prepared(threads=1, device=CPU, seed=given.seed):
        run(given.out / f"seed-{given.seed}", given.seed)


if __name__ == "__main__":
    main()
