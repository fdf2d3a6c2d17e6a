"""Rehearse the recipe `leaderboard` on synthetic files of the published names and sizes.

`make rehearsal` runs the recipe's own keys with a few steps on some graphs of each collection, and
compares the time and the memory of each stage with those that `plan` computes for a processor. Then
a kernel of docs/guides/kaggle.md trains one collection. It stops when its minutes are over, and its
next session, which has its output attached, resumes. Another kernel ranks with these models.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import errors_in_one_line, resumable_parser, write_page
from common.errors import PipelineError
from common.jobs.run_jobs import measure_cost
from common.machine import granted
from common.settings import KAGGLE_MOUNTS, ROOT
from data.synthetic.graphs import PlannedGraph
from data.synthetic.write import MAX_CONFIGS, MAX_NODES, published_graphs, synthesize
from data.tree import COLLECTIONS, SPLITS, collection_named
from models.config.recipe import Recipe, load_recipe
from pipeline.planning.costs import find_step_costs
from pipeline.planning.plan import Graphs, Plan, make_plan, official_graphs

RECIPE = "leaderboard"
IN_KERNELS = collection_named("layout:nlp:default")
N_KERNELS = 200
# Steps of a layout network visit each of two graphs twice.
STEPS = {"layout": 4, "tile": 40}
# Boosting has as many rounds, so that it cannot stop earlier than its plan.
ROUNDS = 100
# The first session has twice these minutes, and each further session twice those before it.
MINUTES = 0.25
RATIOS = 0.6, 1.6


def rehearsed_graphs(max_nodes: int, max_configs: int, n_kernels: int) -> list[PlannedGraph]:
    """Return two train graphs, a valid and a test graph of each layout collection, and kernels.

    One train graph has the most nodes of its split, the other one the most configs. The graphs of
    the other splits have a median size.
    """
    plans = published_graphs([collection_named("tile:xla")], share=n_kernels / 7_229)
    layouts = [collection for collection in COLLECTIONS if collection.kind == "layout"]
    for collection, split in product(layouts, SPLITS):
        graphs = published_graphs([collection], [split])
        graphs.sort(key=lambda graph: (graph.size.n_nodes, graph.size.n_configs))
        if split == "train":
            plans += [graphs[-1], max(graphs[:-1], key=lambda graph: graph.size.n_configs)]
        else:
            plans.append(graphs[len(graphs) // 2])
    return [_limit_size(graph, max_nodes, max_configs) for graph in plans]


def _limit_size(graph: PlannedGraph, max_nodes: int, max_configs: int) -> PlannedGraph:
    size = graph.size.at_most(max_configs)
    share = min(1.0, max_nodes / size.n_nodes)
    nodes, configurable = (int(share * n) for n in (size.n_nodes, size.n_configurable))
    return replace(graph, size=replace(size, n_nodes=nodes, n_configurable=configurable))


def sizes_of(graphs: Sequence[PlannedGraph]) -> list[Graphs]:
    """Return the sizes for `plan`. Configs of generated graphs are distinct but for a few."""
    parts: dict[tuple[str, str], list[PlannedGraph]] = {}
    for graph in graphs:
        parts.setdefault((graph.collection.name, graph.split), []).append(graph)
    return [
        Graphs(
            *part,
            np.array([graph.size.n_nodes for graph in group]),
            np.array([graph.size.n_configs for graph in group]),
        )
        for part, group in parts.items()
    ]


def few_steps(recipe: Recipe) -> Iterator[str]:
    """Yield the overrides for one seed of a few steps, and one thread of this processor."""
    for model in recipe.all_models:
        yield f"{model}.seeds=[{recipe.seeds[0]}]"
        if getattr(getattr(recipe, model), "early_stop", 0):
            yield from (f"{model}.{key}={ROUNDS}" for key in ("num_boost_round", "early_stop"))
    yield from ("threads=1", "accelerator=cpu")
    for collection in COLLECTIONS:
        for model in recipe.models_of(collection.kind):
            if recipe.of(collection).training_of(model):
                table = f'collection."{collection.name}".{model}.training'
                for key in ("steps", "checkpoint_every", "log_every"):
                    yield f"{table}.{key}={STEPS[collection.kind]}"
                yield f"{table}.warmup_steps=1"


class Row(NamedTuple):
    """The cost of a stage. Memory is 0 if the plan has none, and None if it was not measured.

    Attributes:
        planned_s: Seconds of one thread that the plan has for the rehearsed files.
        dataset_s: Seconds of one thread that it has for the dataset and all seeds and steps.
    """

    stage: str
    planned_s: float
    dataset_s: float
    cpu_s: float
    planned_mib: float
    peak_mib: float | None

    @property
    def ratio(self) -> float:
        return self.cpu_s / self.planned_s


def compare_costs(costs: dict[str, Any], small: Plan, full: Plan, seed: int) -> list[Row]:
    """Return the rows of the stages of a run: prepare, trainings, rankings, and the rest."""
    cpu_s, peak_mib = costs["cpu_seconds"], costs["peak_mib"]

    def row(stage: str, hours: tuple[float, float], names: list[str], mib: float = 0.0) -> Row:
        peaks = [peak_mib[name] or 0.0 for name in names if name in peak_mib]
        spent_s = sum(cpu_s.get(name, 0.0) for name in names)
        few_s, every_s = (3600 * h for h in hours)
        return Row(stage, few_s, every_s, spent_s, mib, max(peaks, default=None))

    def stages(plan: Plan, key: str) -> float:
        return sum(getattr(stage, key) for stage in plan.collections)

    prepare = stages(small, "prepare_hours"), stages(full, "prepare_hours")
    rows = [row("prepare and audit", prepare, ["prepare and audit"])]
    pairs = list(zip(small.models, full.models, strict=True))
    for part, total in pairs:
        if part.train_hours:
            name = f"train {part.collection} {part.model}"
            hours = part.runs * part.train_hours, total.runs * total.train_hours
            # The stage of a final fit has this name and its splits.
            fits = [stage for stage in cpu_s if stage.startswith(f"{name}-seed{seed}")]
            rows.append(row(name, hours, fits, part.process_mib))
    for stage in small.collections:
        of = [pair for pair in pairs if pair[0].collection == stage.collection]
        hours = sum(part.rank_hours for part, _ in of), sum(total.rank_hours for _, total in of)
        name = f"predict {stage.collection}"
        rows.append(row(f"rank {stage.collection}", hours, [name]))
    end = [name for name in cpu_s if not name.startswith(("prepare", "train ", "predict "))]
    score = stages(small, "score_hours"), stages(full, "score_hours")
    return [*rows, row("blend, score and submission", score, end)]


def stage_costs(out: Path) -> dict[str, list[float]]:
    """Return the seconds and processor seconds of each finished stage."""
    return dict(json.loads(path.read_text())) if (path := out / "costs.json").exists() else {}


def run_stage(out: Path, name: str, work: Callable[[], object]) -> None:
    """Do the work of a stage, unless it is finished, and store its costs."""
    costs = stage_costs(out)
    if name in costs:
        return
    print(f"rehearsal: {name}", flush=True)  # noqa: T201
    with measure_cost() as costs_of_work:
        work()
    costs[name] = [costs_of_work[0].seconds, costs_of_work[0].cpu_s]
    (out / "costs.json").write_text(json.dumps(costs, indent=1) + "\n")


def call(*words: object, **environment: Path) -> None:
    """Run a script or a command of the project."""
    program = [] if "/" in str(words[0]) else ["-m", "pipeline"]
    command = [sys.executable, *program, *map(str, words)]
    variables = os.environ | {key: str(value) for key, value in environment.items()}
    result = subprocess.run(command, cwd=ROOT, env=variables, check=False)  # noqa: S603
    if result.returncode:
        raise PipelineError(f"{' '.join(command)}: ended with {result.returncode}")


def run_kernel(out: Path, name: str, options: Sequence[str], inputs: Sequence[Path]) -> Path:
    """Run sessions of a kernel until one is finished, and return the output of that session."""
    script, datasets = out / "kernels" / name, out / "input" / "datasets"
    sources = ("--dataset", "me/wheels", "--kernel", "me/models", "--out", script)
    earlier: list[Path] = []

    def run_session(output: Path, folders: Sequence[Path]) -> None:
        for folder in (output, datasets):
            shutil.rmtree(folder, ignore_errors=True)
        for number, folder in enumerate(folders):
            shutil.copytree(folder, datasets / "me" / str(number))
        output.mkdir(parents=True)
        minutes = MINUTES * 2 ** int(output.name)
        call("kernel", "build", *options, *sources, "--max-minutes", minutes)
        places = {"PIPELINE_KAGGLE_INPUT": out / "input", "PIPELINE_KAGGLE_WORKING": output}
        call(script / f"fast-or-slow-{RECIPE}-{name}.py", **places)

    for session in count(1):
        output = out / "sessions" / name / str(session)
        work = partial(run_session, output, [*inputs, *earlier])
        run_stage(out, f"{name} kernel, session {session}", work)
        if json.loads((output / "kernel.json").read_text())["finished"]:
            break
        earlier = [output]
    return output


def rehearse(out: Path, words: Sequence[str], graphs: Sequence[PlannedGraph]) -> dict[str, Any]:
    """Make the files, run the recipe and the kernels, and return the report of the run."""
    data, run = out / "data", out / "run"

    def run_recipe() -> None:
        # The costs in a report are those of one call.
        for folder in (run, out / "store"):
            shutil.rmtree(folder, ignore_errors=True)
        call("run", "--data", data, "--out", run, *words, PIPELINE_STORE=out / "store")

    run_stage(out, "synthesize", partial(synthesize, data, graphs))
    run_stage(out, "run", run_recipe)
    mount = out / "input" / KAGGLE_MOUNTS[0].relative_to("/kaggle/input")
    folder = Path("npz") / IN_KERNELS.folder
    shutil.copytree(data / folder, mount / folder, dirs_exist_ok=True)
    train = [*words, "--kind", "train", "--collection", IN_KERNELS.name]
    train_output = run_kernel(out, f"train-{IN_KERNELS.slug}", train, [])
    output = run_kernel(out, "infer", [*words, "--kind", "infer"], [train_output])
    check = partial(call, "submission", "check", output / "submission.csv", "--data", mount)
    run_stage(out, "submission check", check)
    report: dict[str, Any] = json.loads((run / "report.json").read_text())
    return report


@errors_in_one_line()
def main() -> None:
    """Rehearse, and write the page."""
    parser = resumable_parser("Rehearse the recipe leaderboard.")
    parser.add_argument("--set", action="append", default=[], help="override of the recipe")
    parser.add_argument("--max-nodes", type=int, default=MAX_NODES, help="of a layout graph")
    parser.add_argument("--max-configs", type=int, default=MAX_CONFIGS, help="of a graph")
    parser.add_argument("--kernels", type=int, default=N_KERNELS, help="number of tile kernels")
    options = parser.parse_args()
    out, recipe = options.out.resolve(), load_recipe(RECIPE, options.set)
    out.mkdir(parents=True, exist_ok=True)
    overrides = [*options.set, *few_steps(recipe)]
    words = ["--recipe", RECIPE, *chain(*product(["--set"], overrides))]
    graphs = rehearsed_graphs(options.max_nodes, options.max_configs, options.kernels)
    report = rehearse(out, words, graphs)
    costs, small_recipe = find_step_costs("none", None), load_recipe(RECIPE, overrides)
    small = make_plan(small_recipe, costs, sizes_of(graphs))
    dataset = make_plan(recipe, costs, official_graphs())
    n_cores, n_bytes = granted()
    write_page(
        "rehearsal",
        options.report,
        recipe=recipe,
        overrides=options.set,
        graphs=graphs,
        rows=compare_costs(report, small, dataset, recipe.seeds[0]),
        ratios=RATIOS,
        costs=stage_costs(out),
        first_minutes=2 * MINUTES,
        steps=STEPS,
        rounds=ROUNDS,
        cores=n_cores,
        n_bytes=n_bytes,
    )


if __name__ == "__main__":
    main()
