"""Rehearse the recipe `leaderboard` on synthetic files of the published names and sizes.

`make rehearsal` runs the recipe's own keys with a few steps on some graphs of each collection, and
compares the time and the memory of each stage with those that `plan` computes for a processor. Then
a kernel of docs/guides/kaggle.md trains one collection. It stops when its minutes are over, and its
next session, which has its output attached, resumes. Another kernel ranks with these models.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import PAGES, errors_in_one_line, render, write_page
from common.errors import PipelineError
from common.jobs.run_jobs import measure_cost
from common.machine import granted
from common.reproducibility import revision
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
    chosen = published_graphs([collection_named("tile:xla")], share=n_kernels / 7_229)
    for one, split in product(COLLECTIONS, SPLITS):
        if one.kind == "tile":
            continue
        graphs = published_graphs([one], [split])
        graphs.sort(key=lambda graph: (graph.size.n_nodes, graph.size.n_configs))
        if split == "train":
            chosen += [graphs[-1], max(graphs[:-1], key=lambda graph: graph.size.n_configs)]
        else:
            chosen.append(graphs[len(graphs) // 2])
    return [_limited(graph, max_nodes, max_configs) for graph in chosen]


def _limited(graph: PlannedGraph, max_nodes: int, max_configs: int) -> PlannedGraph:
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
    for one in COLLECTIONS:
        for model in recipe.models_of(one.kind):
            if recipe.of(one).training_of(model):
                for key in ("steps", "checkpoint_every", "log_every"):
                    yield f'collection."{one.name}".{model}.training.{key}={STEPS[one.kind]}'
                yield f'collection."{one.name}".{model}.training.warmup_steps=1'


@dataclass(frozen=True)
class Row:
    """The cost of a stage.

    Attributes:
        planned_s: Seconds of one thread that the plan has for the rehearsed files.
        dataset_s: Seconds of one thread that it has for the dataset and all seeds and steps.
        cpu_s: Measured seconds.
        planned_mib: Memory of the process by plan, 0 if the plan has none.
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


def compared(costs: dict[str, Any], small: Plan, whole: Plan, seed: int) -> list[Row]:
    """Return the rows of the stages of a run: prepare, trainings, rankings, and the rest."""
    cpu_s, peak_mib = costs["cpu_seconds"], costs["peak_mib"]

    def row(stage: str, hours: tuple[float, float], names: list[str], mib: float = 0.0) -> Row:
        peaks = [peak_mib[name] or 0.0 for name in names if name in peak_mib]
        spent_s = sum(cpu_s.get(name, 0.0) for name in names)
        few_s, every_s = (3600 * h for h in hours)
        return Row(stage, few_s, every_s, spent_s, mib, max(peaks, default=None))

    def stages(plan: Plan, key: str) -> float:
        return sum(getattr(stage, key) for stage in plan.collections)

    prepare = stages(small, "prepare_hours"), stages(whole, "prepare_hours")
    rows = [row("prepare and audit", prepare, ["prepare and audit"])]
    pairs = list(zip(small.models, whole.models, strict=True))
    for few, every in pairs:
        if few.train_hours:
            name = f"train {few.collection} {few.model}"
            hours = few.runs * few.train_hours, every.runs * every.train_hours
            # The stage of a final fit has this name and its splits.
            fits = [stage for stage in cpu_s if stage.startswith(f"{name}-seed{seed}")]
            rows.append(row(name, hours, fits, few.process_mib))
    for stage in small.collections:
        of = [pair for pair in pairs if pair[0].collection == stage.collection]
        hours = sum(few.rank_hours for few, _ in of), sum(every.rank_hours for _, every in of)
        name = f"predict {stage.collection}"
        rows.append(row(f"rank {stage.collection}", hours, [name]))
    rest = [name for name in cpu_s if not name.startswith(("prepare", "train ", "predict "))]
    score = stages(small, "score_hours"), stages(whole, "score_hours")
    return [*rows, row("blend, score and submission", score, rest)]


def stage_costs(out: Path) -> dict[str, list[float]]:
    """Return the seconds and processor seconds of each finished stage."""
    return dict(json.loads(path.read_text())) if (path := out / "costs.json").exists() else {}


def run_stage(out: Path, name: str, *commands: Sequence[object], **environment: Path) -> None:
    """Run scripts or commands of the project, unless the stage is finished, and store the costs."""
    if name in stage_costs(out):
        return
    print(f"rehearsal: {name}", flush=True)  # noqa: T201
    variables = os.environ | {key: str(value) for key, value in environment.items()}
    with measure_cost() as costs:
        for command in commands:
            is_script = "/" in str(command[0])
            words = [*([] if is_script else ["-m", "pipeline"]), *map(str, command)]
            done = subprocess.run([sys.executable, *words], cwd=ROOT, env=variables, check=False)  # noqa: S603
            if done.returncode:
                raise PipelineError(f"{name}: {' '.join(words)}: ended with {done.returncode}")
    spent = {name: [costs[0].seconds, costs[0].cpu_s]}
    text = json.dumps(stage_costs(out) | spent, indent=1) + "\n"
    (out / "costs.json").write_text(text)


def run_kernel(out: Path, name: str, options: Sequence[str], attached: Sequence[Path]) -> Path:
    """Run sessions of a kernel until one is finished, and return the output of that session."""
    script, datasets = out / "kernels" / name, out / "input" / "datasets"
    sources = ("--dataset", "me/wheels", "--kernel", "me/models", "--out", script)
    earlier: list[Path] = []
    for session in count(1):
        output, stage = out / "sessions" / name / str(session), f"{name} kernel, session {session}"
        if stage not in stage_costs(out):
            for folder in (output, datasets):
                shutil.rmtree(folder, ignore_errors=True)
            for number, folder in enumerate([*attached, *earlier]):
                shutil.copytree(folder, datasets / "me" / str(number))
            output.mkdir(parents=True)
            build = ["kernel", "build", *options, *sources, "--max-minutes", MINUTES * 2**session]
            places = {"PIPELINE_KAGGLE_INPUT": out / "input", "PIPELINE_KAGGLE_WORKING": output}
            run_stage(out, stage, build, [script / f"fast-or-slow-{RECIPE}-{name}.py"], **places)
        if json.loads((output / "kernel.json").read_text())["finished"]:
            break
        earlier = [output]
    return output


def rehearse(out: Path, shared: Sequence[str], graphs: Sequence[PlannedGraph]) -> dict[str, Any]:
    """Make the files, run the recipe and the kernels, and return the report of the run."""
    data, run = out / "data", out / "run"
    if "synthesize" not in stage_costs(out):
        with measure_cost() as costs:
            synthesize(data, graphs)
        spent = {"synthesize": [costs[0].seconds, costs[0].cpu_s]}
        (out / "costs.json").write_text(json.dumps(spent) + "\n")
    if "run" not in stage_costs(out):
        # The costs in a report are those of one call.
        for folder in (run, out / "store"):
            shutil.rmtree(folder, ignore_errors=True)
        places = ("--data", data, "--out", run)
        run_stage(out, "run", ["run", *places, *shared], PIPELINE_STORE=out / "store")
    mount = out / "input" / KAGGLE_MOUNTS[0].relative_to("/kaggle/input")
    folder = Path("npz") / IN_KERNELS.folder
    shutil.copytree(data / folder, mount / folder, dirs_exist_ok=True)
    train = [*shared, "--kind", "train", "--collection", IN_KERNELS.name]
    trained = run_kernel(out, f"train-{IN_KERNELS.slug}", train, [])
    output = run_kernel(out, "infer", [*shared, "--kind", "infer"], [trained])
    check = ["submission", "check", output / "submission.csv", "--data", mount]
    run_stage(out, "submission check", check)
    report: dict[str, Any] = json.loads((run / "report.json").read_text())
    return report


@errors_in_one_line()
def main() -> None:
    """Rehearse, and write the page."""
    parser = argparse.ArgumentParser(description="Rehearse the recipe leaderboard.")
    parser.add_argument("--out", type=Path, required=True, help="folder of all files")
    parser.add_argument("--set", action="append", default=[], help="override of the recipe")
    parser.add_argument("--max-nodes", type=int, default=MAX_NODES, help="of a layout graph")
    parser.add_argument("--max-configs", type=int, default=MAX_CONFIGS, help="of a graph")
    parser.add_argument("--kernels", type=int, default=N_KERNELS, help="number of tile kernels")
    parser.add_argument("--page", type=Path, default=PAGES / "rehearsal.md")
    given = parser.parse_args()
    out, whole = given.out.resolve(), load_recipe(RECIPE, given.set)
    out.mkdir(parents=True, exist_ok=True)
    overrides = [*given.set, *few_steps(whole)]
    shared = ["--recipe", RECIPE, *chain(*product(["--set"], overrides))]
    graphs = rehearsed_graphs(given.max_nodes, given.max_configs, given.kernels)
    report = rehearse(out, shared, graphs)
    costs, few = find_step_costs("none", None), load_recipe(RECIPE, overrides)
    small = make_plan(few, costs, sizes_of(graphs))
    dataset = make_plan(whole, costs, official_graphs())
    facts: dict[str, object] = {"recipe": whole, "overrides": given.set, "graphs": graphs}
    facts |= {"rows": compared(report, small, dataset, whole.seeds[0]), "ratios": RATIOS}
    facts |= {
        "costs": stage_costs(out),
        "first_minutes": 2 * MINUTES,
        "steps": STEPS,
        "rounds": ROUNDS,
    }
    facts |= {"cores": granted()[0], "n_bytes": granted()[1], "revision": revision()}
    write_page(given.page, render("rehearsal", **facts))


if __name__ == "__main__":
    main()
