"""Compare segment training with whole graphs, and write docs/results/segments.md.

`python -m benchmarks.segments --out runs/segments --real ../shared/tpugraphs` trains every missing
(task, training, seed), times every missing step, and writes the page. The same command resumes.
"""

import argparse
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks import errors_in_one_line, resumable_parser, write_page
from benchmarks.accuracy.cells import judge, read_judged
from benchmarks.accuracy.report import estimate_of, value_text
from benchmarks.accuracy.tasks import TASKS, Fold, Sources
from benchmarks.speed import in_fresh_process
from benchmarks.workloads import make_workload, train_steps
from common.files import alone_in
from common.jobs.run_jobs import measure_cost
from common.machine import own_peak_mib
from common.settings import ROOT, SAMPLE
from data.families import family_of
from data.graphs.graph import CONFIGURABLE_SHARE
from data.synthetic.graphs import GraphSize
from data.tree import collections_named, find_graphs
from models.config.recipe import load_recipe
from models.registry import TrainJob, load_model
from models.train import train_model
from models.training.device import CPU, prepare_torch

MODEL, STEP = "segment_sage", "step"
MODES = {
    "whole graph": "segment_nodes=1000000",
    "all segments": "live_segments=0",
    "two live segments": "live_segments=2",
}
# The recipe `segments` has 200 steps.
STEPS = {"whole graph": (200, 80), "all segments": (200, 80), "two live segments": (200, 400)}
TRAININGS = {f"{name}, {n} steps": (MODES[name], n) for name in MODES for n in STEPS[name]}
# The embedded set of large programs.
LARGE = ROOT / "data" / "large"
N_TIMED_STEPS, STEP_NODES = 2, (5_000, 10_000, 20_000, 43_615)
# The largest segment of each task.
SEGMENT_NODES = {"unet3d": 400, "sample": 50, "large": 1000}

Cell = dict[str, Any]
# Task, name and seed of a cell. That of a step is its number of nodes.
Key = tuple[str, str, int]
Job = Callable[[], Cell]


class Training(NamedTuple):
    """A model, its recipe and changed keys."""

    model: str
    recipe: str
    keys: tuple[str, ...]


def folds_of(task: str, sources: Sources, seed: int, folder: Path) -> list[Fold]:
    """Return the trainings of a task: on configs of unet3d, or on the train split of a folder."""
    if task == "unet3d":
        return TASKS["unet3d-all"].folds(sources, seed, folder)
    layouts = collections_named("layout:xla:random" if task == "sample" else "layout")
    train, valid = (
        tuple(find_graphs(sources.sample, collections=layouts, splits=(split,)))
        for split in ("train", "valid")
    )
    return [Fold(task, train, valid)]


def train_cell(task: str, training: Training, seed: int, sources: Sources) -> Cell:
    """Train and judge in this process, with one thread."""
    import lightgbm  # noqa: F401

    graphs, cpu_s, peak_mib = dict[str, Cell](), 0.0, 0.0
    recipe = load_recipe(training.recipe, [*training.keys, "threads=1"])
    with TemporaryDirectory() as work:
        for fold in folds_of(task, sources, seed, Path(work) / "data"):
            job = TrainJob(training.model, recipe, fold.train, seed, Path(work) / fold.name)
            with measure_cost() as costs:
                train_model(job, fold.train[0].collection, resume=False)
            cpu_s, peak_mib = cpu_s + costs[0].cpu_s, max(peak_mib, costs[0].peak_mib or 0)
            ranker = load_model(job.run_dir, recipe.trust)
            for file in fold.judged:
                metrics = judge(ranker, read_judged(file, sources))
                graphs[file.submission_id] = metrics | {"family": family_of(file)}
    return {"graphs": graphs, "cpu_s": cpu_s, "mib": peak_mib}


def time_step(name: str, n_nodes: int) -> Cell:
    """Time a step in this process, and measure its graph and the memory that steps add."""
    # The optimizer imports it, and its memory is not that of a step.
    import torch._dynamo

    prepare_torch(seed=0, threads=1)
    recipe = load_recipe("segments", [f"{MODEL}.{MODES[name]}"])
    # The configs of one step, so that only the first step lacks stored embeddings.
    size = GraphSize(n_nodes, int(CONFIGURABLE_SHARE * n_nodes), 64)
    workload = make_workload(recipe, MODEL, size, has_real_distances=True)
    # Segments are views of the graph, and torch writes what they share once.
    torch.save(workload.graphs[0], file := io.BytesIO())
    graph_mib = file.tell() / 2**20
    file.close()
    ends = list[float]()
    with measure_cost() as costs:
        before_mib = own_peak_mib()
        train_steps(workload, CPU, 1 + N_TIMED_STEPS, lambda _: ends.append(time.process_time()))
    added_mib = (costs[0].peak_mib or 0) - before_mib
    return {"s": float(np.diff(ends).min()), "graph_mib": graph_mib, "mib": added_mib}


def jobs_of(sources: Mapping[str, Sources], seeds: Sequence[int]) -> dict[Key, Job]:
    """Return the trainings of each task, and the timings of steps."""
    jobs = dict[Key, Job]()
    for seed, task, name in product(seeds, sources, TRAININGS):
        mode, steps = TRAININGS[name]
        keys = (f"segment_nodes={SEGMENT_NODES[task]}", mode, f"training.steps={steps}")
        training = Training(MODEL, "segments", tuple(f"{MODEL}.{key}" for key in keys))
        jobs[task, name, seed] = partial(train_cell, task, training, seed, sources[task])
    for n_nodes, name in product(STEP_NODES, MODES):
        jobs[STEP, name, n_nodes] = partial(time_step, name, n_nodes)
    return jobs


def run_missing(folder: Path, jobs: Mapping[Key, Job]) -> list[Cell]:
    """Run each job that FOLDER/cells.jsonl lacks in a new process, and return all cells."""
    path = folder / "cells.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        cells = [json.loads(line) for line in lines]
        known = {(cell["task"], cell["name"], cell["seed"]) for cell in cells}
        for key in (key for key in jobs if key not in known):
            names = dict(zip(("task", "name", "seed"), key, strict=True))
            cells.append(names | in_fresh_process(jobs[key]))
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(cells[-1]) + "\n")
            print(*key, sep=", ", flush=True)  # noqa: T201
    return cells


def task_rows(cells: Sequence[Cell], task: str) -> Iterator[list[str]]:
    """Yield a row per training of a task."""
    for name in TRAININGS:
        if of_name := [c for c in cells if (c["task"], c["name"]) == (task, name)]:
            tau = value_text(estimate_of(of_name, "kendall_tau"), "kendall_tau")
            cpu_s, mib = (np.mean([cell[key] for cell in of_name]) for key in ("cpu_s", "mib"))
            yield [name, f"{len(of_name)}", tau, f"{cpu_s:.1f}", f"{mib:,.0f}"]


def step_rows(cells: Sequence[Cell]) -> Iterator[list[str]]:
    """Yield a row per timed step."""
    steps = ((c["seed"], c["name"], c) for c in cells if c["task"] == STEP)
    for n_nodes, name, c in sorted(steps, key=lambda step: step[:2]):
        sizes = (f"{c[key]:,.0f}" for key in ("graph_mib", "mib"))
        yield [f"{n_nodes:,}", name, f"{c['s']:.2f}", *sizes]


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the folders of the data, and the seeds."""
    parser, real = resumable_parser(description), os.environ.get("TPUGRAPHS_REAL")
    option = parser.add_argument
    option("--real", type=Path, default=real and Path(real), help="folder of TpuGraphs files")
    option("--large", type=Path, default=LARGE, help="folder of large layout graphs, with npz/")
    option("--seeds", type=int, nargs="*", default=[*range(5)])
    return parser


def sources_of(options: argparse.Namespace) -> dict[str, Sources]:
    """Return the data of each task that is here."""
    real = {"unet3d": Sources(SAMPLE, options.real)} if options.real else {}
    return real | {"sample": Sources(SAMPLE, None), "large": Sources(options.large, None)}


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing cells, and write the page."""
    options = options_parser(__doc__).parse_args(arguments)
    cells = run_missing(options.out, jobs_of(sources_of(options), options.seeds))
    tasks = {task: list(task_rows(cells, task)) for task in SEGMENT_NODES}
    facts = {"segment_nodes": SEGMENT_NODES, "configurable": CONFIGURABLE_SHARE}
    write_page("segments", options.report, tasks=tasks, steps=list(step_rows(cells)), **facts)


if __name__ == "__main__":
    main()
