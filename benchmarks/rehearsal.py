"""Rehearse the recipe `leaderboard` on synthetic files of the published names and sizes.

`make rehearsal` runs the commands of docs/guides/kaggle.md on one machine, for the xla collections.
A kernel stops when its minutes are over. Its next session has its output attached, and resumes.
"""

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, count, product
from pathlib import Path

from benchmarks import PAGES, errors_in_one_line, render, write_page
from common.errors import PipelineError
from common.files import write_text
from common.machine import granted
from common.reproducibility import revision
from common.settings import KAGGLE_MOUNTS, ROOT
from data.synthetic.write import MAX_CONFIGS, published_graphs
from data.tree import SPLITS, collection_named
from ensembles.scores import scores_path
from models.config.recipe import Recipe, load_recipe
from models.predict import read_scores

RECIPE, AT_HOME, SIBLINGS = "leaderboard", "layout_boosting", "config_columns_boosting"
COLLECTIONS = tuple(collection_named(f"layout:xla:{search}") for search in ("default", "random"))
STEPS_DIVISOR, MIN_STEPS = 200, 10
# The first session has twice these minutes, and each further session twice those before it.
MINUTES = 0.25


def divided_steps(recipe: Recipe) -> Iterator[str]:
    """Yield the overrides that divide the steps of each layout network in each collection."""
    for one, model in product(COLLECTIONS, recipe.models_of("layout")):
        if training := recipe.of(one).training_of(model):
            for key in ("steps", "warmup_steps", "checkpoint_every", "log_every"):
                value = max(MIN_STEPS, math.ceil(getattr(training, key) / STEPS_DIVISOR))
                yield f'collection."{one.name}".{model}.training.{key}={value}'


def stage_costs(out: Path) -> dict[str, list[float]]:
    """Return the seconds, processor seconds and peak MiB of each finished stage."""
    return dict(json.loads(path.read_text())) if (path := out / "costs.json").exists() else {}


def run_stage(out: Path, name: str, *commands: Sequence[object], **environment: Path) -> None:
    """Run scripts or commands of the project, unless the stage is finished, and store the costs."""
    if name in stage_costs(out):
        return
    print(f"rehearsal: {name}", flush=True)  # noqa: T201
    started, cpu_s, peak_mib = time.monotonic(), dict[int, int](), 0.0
    variables = os.environ | {key: str(value) for key, value in environment.items()}
    for command in commands:
        words = [*(["-m", "pipeline"] if "/" not in str(command[0]) else []), *map(str, command)]
        with subprocess.Popen([sys.executable, *words], cwd=ROOT, env=variables) as process:  # noqa: S603
            while process.poll() is None:
                peak_mib = max(peak_mib, sample_processes(process.pid, cpu_s))
                time.sleep(2)
        if process.returncode:
            raise PipelineError(f"{name}: {' '.join(words)}: ended with {process.returncode}")
    costs = {name: [time.monotonic() - started, sum(cpu_s.values()), peak_mib]}
    write_text(out / "costs.json", json.dumps(stage_costs(out) | costs, indent=1) + "\n")


def sample_processes(root: int, cpu_s: dict[int, int]) -> float:
    """Return the MiB of a process and all below it, and update the seconds of each process."""
    listing = subprocess.check_output(["ps", "-eo", "pid=,ppid=,rss=,cputimes="], text=True)  # noqa: S607
    below, kib = {root}, 0
    # Parents start first, so they come first until the system reuses process IDs.
    rows = sorted([*map(int, row.split())] for row in listing.splitlines())
    for pid, parent, rss, seconds in rows:
        if pid in below or parent in below:
            below.add(pid)
            cpu_s[pid], kib = seconds, kib + rss
    return kib / 1024


def copy_models(out: Path, source: str, name: str) -> Path:
    """Copy trained models into a dataset. A copy that was interrupted is replaced."""
    if name not in stage_costs(out):
        shutil.rmtree(out / name, ignore_errors=True)
    run_stage(out, name, ["kernel", "weights", "--run", out / source, "--out", out / name])
    return out / name


def run_kernel(out: Path, name: str, options: Sequence[str], dataset: Path) -> Path:
    """Run sessions of a kernel until one is finished, and return the output of that session."""
    script, datasets, attached = out / "kernels" / name, out / "input" / "datasets", [dataset]
    sources = ("--dataset", "me/wheels", "--kernel", "me/models", "--out", script)
    for session in count(1):
        output, stage = out / "sessions" / name / str(session), f"{name}, session {session}"
        if stage not in stage_costs(out):
            for folder in (output, datasets):
                shutil.rmtree(folder, ignore_errors=True)
            for number, folder in enumerate(attached):
                shutil.copytree(folder, datasets / "me" / str(number))
            output.mkdir(parents=True)
            build = ["kernel", "build", *options, *sources, "--max-minutes", MINUTES * 2**session]
            places = {"PIPELINE_KAGGLE_INPUT": out / "input", "PIPELINE_KAGGLE_WORKING": output}
            run_stage(out, stage, build, [script / f"fast-or-slow-{RECIPE}-{name}.py"], **places)
        if json.loads((output / "kernel.json").read_text())["finished"]:
            break
        attached = [dataset, output]
    return output


@errors_in_one_line()
def main() -> None:
    """Rehearse, and write the page."""
    parser = argparse.ArgumentParser(description="Rehearse the recipe leaderboard.")
    parser.add_argument("--out", type=Path, required=True, help="folder of all files")
    parser.add_argument("--set", action="append", default=[], help="override of the recipe")
    parser.add_argument("--share", type=float, default=1.0, help="share of the graphs of a split")
    parser.add_argument("--max-configs", type=int, default=MAX_CONFIGS, help="of a train graph")
    parser.add_argument("--page", type=Path, default=PAGES / "rehearsal.md")
    given = parser.parse_args()
    out, recipe = given.out.resolve(), load_recipe(RECIPE, given.set)
    shared = ["--recipe", RECIPE, *chain(*product(["--set"], [*given.set, *divided_steps(recipe)]))]
    data = out / "input" / KAGGLE_MOUNTS[0].relative_to("/kaggle/input")
    plan = ("--plan", "published", "--collections", "layout:xla", "--share", given.share)
    made = ["synthesize", "--out", data, *plan, "--max-configs", given.max_configs]
    run_stage(out, "synthesize", made)
    for one in COLLECTIONS:
        place = ("--data", data, "--collection", one.name, "--out", out / "trees" / one.slug)
        train = ["train", *place, "--model", AT_HOME, *shared, "--resume"]
        run_stage(out, f"{AT_HOME}, {one.name}", train, PIPELINE_STORE=out / "store")
    trees = copy_models(out, "trees", "tree-weights")
    for one in COLLECTIONS:
        options = [*shared, "--kind", "train", "--collection", one.name]
        run_kernel(out, f"train-{one.slug}", options, trees)
    weights = copy_models(out, "sessions", "weights")
    output = run_kernel(out, "infer", [*shared, "--kind", "infer"], weights)
    submission = output / "submission.csv"
    run_stage(out, "submission check", ["submission", "check", submission, "--data", data])
    ranked = {}
    for one, split in product(COLLECTIONS, ("valid", "test")):
        path = scores_path(output / "run", one, f"{SIBLINGS}-seed{recipe.seeds[0]}", split)
        ranked[one.name, split] = read_scores(path)["graph"].n_unique()
    facts: dict[str, object] = {"recipe": recipe, "overrides": given.set, "ranked": ranked}
    facts["graphs"] = published_graphs(COLLECTIONS, SPLITS, given.share, given.max_configs)
    facts |= {"published": published_graphs(COLLECTIONS), "costs": stage_costs(out)}
    facts |= {"divisor": STEPS_DIVISOR, "least": MIN_STEPS, "first_minutes": 2 * MINUTES}
    facts |= {"n_rows": len(submission.read_text().splitlines()) - 1, "revision": revision()}
    facts |= {"cores": granted()[0], "n_bytes": granted()[1], "machine": platform.machine()}
    write_page(given.page, render("rehearsal", **facts))


if __name__ == "__main__":
    main()
