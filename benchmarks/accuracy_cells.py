"""One cell of the comparison: a task, a contender and a seed, trained and judged into JSON.

GNNs also leave a learning curve: the checkpoints that training writes anyway are kept, and judged
when training is over, so that the clock sees nothing of it.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.accuracy_comparisons import COMPARISONS, Comparison
from benchmarks.accuracy_tasks import Part, Sources, sample_families, sample_manifest
from data.atomic import write_text
from data.distinct import distinct_configs
from data.errors import PipelineError, UsageError
from data.fingerprint import fingerprint
from data.graph import Graph, TileGraph
from data.noise import measure_noise
from data.read import read_graph
from ensembles.choose_in_run import recipe_mixing
from ensembles.ensemble import Ensemble
from ensembles.report import environment, revision
from models.engine import CHECKPOINT
from models.folds import family_of
from models.jobs import Ranker, TrainJob
from models.older_recipe import with_new_keys
from models.recipe import Recipe, load_recipe
from models.registry import MODELS
from models.run_folder import CONFIG, first_difference, mark_done
from models.saved_network import WEIGHTS
from models.train import load_model, train_model
from models.weights import load_tensors, save_tensors
from submissions.labels import Labels
from submissions.score import score_graph

POINTS = 8  # of a learning curve


@dataclass(frozen=True)
class Cell:
    """What is trained and judged.

    Attributes:
        task, contender: names.
        overrides: recipe keys on top of the contender's own, "key=value".
        tuning: judged on what is never reported.
        kind: of the comparison, "layout" or "tile".
    """

    task: str
    contender: str
    seed: int
    overrides: tuple[str, ...] = ()
    tuning: bool = False
    kind: str = "layout"

    @property
    def comparison(self) -> Comparison:
        """Return what the cell is a part of."""
        return COMPARISONS[self.kind]

    @property
    def models(self) -> tuple[str, ...]:
        """Return the contender's models in the registry; several are blended."""
        return self.comparison.contenders[self.contender].models

    @property
    def has_curve(self) -> bool:
        """Tell whether its checkpoints are judged too."""
        return len(self.models) == 1 and self.models[0] in self.comparison.with_curves

    def path(self, out: Path) -> Path:
        """Return where the cell's JSON file lies."""
        kind = "tuning" if self.tuning else "cells"
        return out / kind / f"{self.task}--{self.contender}--{self.seed}.json"

    def recipe(self) -> Recipe:
        """Return the recipe: one thread, and a checkpoint for each point of the curve."""
        contender = self.comparison.contenders[self.contender]
        overrides = [*contender.overrides, *self.overrides, "threads=1", f"seeds=[{self.seed}]"]
        name = contender.recipe_for(self.task)
        recipe = load_recipe(name, overrides)
        if self.has_curve:
            (model,) = self.models
            every = -(-n_steps(recipe, model) // POINTS)
            key = f"{model}.training.checkpoint_every"
            recipe = load_recipe(name, [*overrides, f"{key}={every}"])
        return recipe


def n_steps(recipe: Recipe, model: str) -> int:
    """Return the steps of a GNN's training, or the rounds of boosting; else 1."""
    training = MODELS[model].training_of(recipe)
    return int(training.steps if training else getattr(getattr(recipe, model), "rounds", 1))


@dataclass
class Clock:
    """Seconds of this process since the start, less what was spent while stopped."""

    wall_s: float = field(default_factory=lambda: -time.perf_counter())
    cpu_s: float = field(default_factory=lambda: -time.process_time())

    def read(self) -> dict[str, float]:
        """Return the seconds so far."""
        return {
            "wall_s": self.wall_s + time.perf_counter(),
            "cpu_s": self.cpu_s + time.process_time(),
        }

    def set_back(self, to: dict[str, float]) -> None:
        """Go on from an earlier reading, as if nothing had happened since."""
        self.wall_s, self.cpu_s = (
            to["wall_s"] - time.perf_counter(),
            to["cpu_s"] - time.process_time(),
        )


@dataclass
class Snapshots:
    """Keeps the weights of each checkpoint and the seconds until then; told of every step."""

    run_dir: Path
    every: int
    clock: Clock = field(default_factory=Clock)
    taken: list[tuple[dict[str, float], dict[str, Tensor]]] = field(default_factory=list)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take one where a checkpoint was just written; the last step's is the model itself."""
        if not done or done % self.every or done == total:
            return
        now = self.clock.read()
        tensors, facts = load_tensors(self.run_dir / CHECKPOINT)
        if int(str(facts["step"])) != done:
            raise PipelineError(f"{self.run_dir}: no checkpoint of step {done}; no learning curve")
        weights = {k: v for k, v in tensors.items() if k.startswith("model.")}
        self.taken.append(({"step": done, **now}, weights))
        self.clock.set_back(now)


def run_cell(cell: Cell, sources: Sources, out: Path) -> bool:
    """Train, judge and write one cell, unless it is there; begins anew where one was interrupted.

    Returns:
        Whether there was anything to do.

    Raises:
        UsageError: the cell is there, but by another recipe or other data.
        PipelineError: as the model's training.
    """
    head = cell_head(cell, sources)
    path = cell.path(out)
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        begun = with_new_keys({key: old.get(key) for key in head}, head)
        difference = first_difference(begun, head)
        if difference:
            raise UsageError(f"{path}: was made with {difference}; choose another --out")
        return False
    work = out / "work" / f"{path.parent.name}-{path.stem}"
    shutil.rmtree(work, ignore_errors=True)
    whole = Clock()
    record = head | _results(cell, sources, work)
    record["with_judging"] = whole.read()
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return True


def cell_head(cell: Cell, sources: Sources) -> dict[str, Any]:
    """Return what decides a cell's outcome, but for the code."""
    dumped = cell.recipe().model_dump(mode="json")
    blending = ("blend",) if len(cell.models) > 1 else ()
    keys = ("name", "threads", "features", *cell.models, *blending)
    return {
        "task": cell.task,
        "contender": cell.contender,
        "seed": cell.seed,
        "tuning": cell.tuning,
        "model": "+".join(cell.models),
        "recipe": {key: dumped[key] for key in keys},
        "data": fingerprint(cell.comparison.tasks[cell.task].files(sources)),
    }


def _results(cell: Cell, sources: Sources, work: Path) -> dict[str, Any]:
    """Train and judge every part; their graphs, seconds and curves as one."""
    task = cell.comparison.tasks[cell.task]
    make = task.tuning_parts if cell.tuning else task.parts
    if make is None:
        raise UsageError(f"task '{cell.task}': has no part for tuning")
    parts = make(sources, cell.seed, work / "data")
    done = [_run_part(cell, part, work / part.name) for part in parts]
    families, manifest = sample_families(sources.sample), sample_manifest(sources.sample)
    graphs: dict[str, Any] = {}
    for part, (judged, _) in zip(parts, done, strict=True):
        for file in part.judged:
            known = {
                "split": file.split,
                "family": families.get(file.submission_id, family_of(file)),
                "part": part.name,
                "again_tau": manifest.get(file.submission_id, {}).get("again_tau"),
            }
            graphs[file.submission_id] = known | judged[file.submission_id]
    curve = [join_points(points) for points in zip(*(points for _, points in done), strict=True)]
    return {
        "graphs": graphs,
        "curve": curve,
        "wall_s": curve[-1]["wall_s"],
        "cpu_s": curve[-1]["cpu_s"],
        "steps": curve[-1]["step"],
        "trainings": {part.name: [file.submission_id for file in part.train] for part in parts},
        "environment": environment(1),
        "revision": revision(),
    }


def join_points(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up the seconds of several trainings at one step; put their graphs' taus together."""
    taus: dict[str, float] = {}
    for point in points:
        taus |= point["kendall_tau"]
    return {
        "step": points[0]["step"],
        "wall_s": round(sum(point["wall_s"] for point in points), 3),
        "cpu_s": round(sum(point["cpu_s"] for point in points), 3),
        "kendall_tau": taus,
    }


def _run_part(
    cell: Cell, part: Part, folder: Path
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Train once; return the metrics of each judged graph, and the curve with its last point."""
    import lightgbm  # noqa: F401  so that its import is not on the clock

    recipe, collection = cell.recipe(), part.train[0].collection
    run_dirs = {model: folder / model for model in cell.models}
    first = cell.models[0]
    every = getattr(recipe, first).training.checkpoint_every if cell.has_curve else 1
    snapshots = Snapshots(run_dirs[first], every)
    progress = snapshots if cell.has_curve else None
    for model, run_dir in run_dirs.items():
        job = TrainJob(model, recipe, part.train, cell.seed, run_dir, progress)
        train_model(job, collection, resume=False)
    seconds = snapshots.clock.read()
    graphs = {file.submission_id: read_graph(file) for file in part.judged}
    points = []
    for facts, weights in snapshots.taken:
        ranker = _ranker_at(run_dirs[first], weights, folder / "at" / str(facts["step"]))
        taus = {name: judge(ranker, graph)["kendall_tau"] for name, graph in graphs.items()}
        points.append({**facts, "kendall_tau": taus})
    rankers = {model: load_model(run_dir) for model, run_dir in run_dirs.items()}
    mixing = recipe_mixing(recipe.blend, collection.kind, list(rankers))
    ranker = Ensemble(collection, rankers, mixing) if len(rankers) > 1 else rankers[first]
    judged = {name: judge(ranker, graph) | _facts(graph) for name, graph in graphs.items()}
    taus = {name: metrics["kendall_tau"] for name, metrics in judged.items()}
    steps = max(n_steps(recipe, model) for model in cell.models)
    points.append({"step": steps, **seconds, "kendall_tau": taus})
    return judged, points


def _ranker_at(run_dir: Path, weights: dict[str, Tensor], folder: Path) -> Ranker:
    """Load the run's model with earlier weights, by way of a run folder of its own."""
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    folder.mkdir(parents=True)
    save_tensors(folder / WEIGHTS, tensors | weights, facts)
    shutil.copy(run_dir / CONFIG, folder / CONFIG)
    mark_done(folder)
    return load_model(folder)


def judge(ranker: Ranker, graph: Graph) -> dict[str, Any]:
    """Return all metrics of one graph, as a submission is judged.

    Raises:
        PipelineError: a score is not finite, or the runtimes give no order.
    """
    scores = ranker.score(graph)
    if not np.isfinite(scores).all():
        raise PipelineError(f"{graph.file.path}: a config's score is not finite")
    ranking = np.argsort(scores, kind="stable")
    normalizers = graph.runtime_normalizers if isinstance(graph, TileGraph) else None
    metrics = score_graph(graph.file.collection, ranking, Labels(graph.runtime_ns, normalizers))
    if metrics["kendall_tau"] is None:
        raise PipelineError(f"{graph.file.path}: its runtimes give no order; it cannot be judged")
    return metrics


def _facts(graph: Graph) -> dict[str, Any]:
    """Return how many distinct configs a graph has, and what those measured twice agree to."""
    first, group = distinct_configs(graph)
    noise = measure_noise(graph.runtime_ns, group)
    found = None
    if noise is not None and np.isfinite(noise.tau):
        found = {"n_repeated": noise.n_repeated, "tau": noise.tau, "best_tau": noise.best_tau}
    return {"n_distinct": len(first), "noise": found}
