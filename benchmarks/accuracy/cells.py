"""One cell of the comparison: a task, a contender and a seed, trained and judged into JSON.

GNNs also leave a learning curve: the checkpoints that training writes anyway are kept, and judged
when training is over, so that the clock sees nothing of it.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.accuracy.clock import Clock, Snapshots
from benchmarks.accuracy.comparisons import COMPARISONS, Comparison
from benchmarks.accuracy.judge import facts_of, judge
from benchmarks.accuracy.tasks import Part, Sources, sample_families, sample_manifest
from common.atomic import write_text
from common.errors import UsageError
from common.git import revision
from data.graph_store.fingerprint import fingerprint
from data.read import read_graph
from ensembles.choice.in_run import recipe_mixing
from ensembles.ensemble import Ensemble
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from models.run_folder import CONFIG, first_difference, mark_done
from models.train import load_model, train_model
from models.training.folds import family_of
from models.training.jobs import Ranker, TrainJob
from models.training.saved_network import WEIGHTS
from models.training.weights import load_tensors, save_tensors
from models.trees.baselines import FLOORS
from pipeline.run.report import environment

FLOOR = "floor"  # what ranks without training
POINTS = 8  # of a learning curve
SEED_STEP = 1000  # from a cell's seed to its next


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
        return self.comparison.contenders[self.contender].models_for(self.task)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return what trainings start from; further ones are no other cell's first."""
        n_seeds = self.comparison.contenders[self.contender].n_seeds
        return tuple(self.seed + number * SEED_STEP for number in range(n_seeds))

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Return what is trained, a model and a seed, by member name."""
        return {
            f"{model}-seed{seed}": (model, seed) for model in self.models for seed in self.seeds
        }

    @property
    def parts_judged(self) -> "list[Cell]":
        """Return the cells that need no more than some of this one's members."""
        contenders = self.comparison.contenders
        names = (name for name, known in contenders.items() if known.part_of == self.contender)
        return [replace(self, contender=name) for name in names]

    @property
    def has_curve(self) -> bool:
        """Tell whether its checkpoints are judged too."""
        return len(self.members) == 1 and self.models[0] in self.comparison.with_curves

    def path(self, out: Path) -> Path:
        """Return where the cell's JSON file lies."""
        kind = "tuning" if self.tuning else "cells"
        return out / kind / f"{self.task}--{self.contender}--{self.seed}.json"

    def recipe(self) -> Recipe:
        """Return the recipe: one thread, and a checkpoint for each point of the curve."""
        contender = self.comparison.contenders[self.contender]
        overrides = [
            *contender.overrides,
            *self.overrides,
            "threads=1",
            f"seeds={list(self.seeds)}",
        ]
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
        difference = first_difference({key: old.get(key) for key in head}, head)
        if difference:
            raise UsageError(f"{path}: was made with {difference}; choose another --out")
        return False
    work = out / "work" / f"{path.parent.name}-{path.stem}"
    shutil.rmtree(work, ignore_errors=True)
    whole = Clock()
    for judged, results in _results(cell, sources, work):
        record = cell_head(judged, sources) | results | {"with_judging": whole.read()}
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        write_text(judged.path(out), text)
    shutil.rmtree(work, ignore_errors=True)
    return True


def cell_head(cell: Cell, sources: Sources) -> dict[str, Any]:
    """Return what decides a cell's outcome, but for the code."""
    dumped = cell.recipe().model_dump(mode="json")
    keys = ["name", "threads", "features", *cell.models]
    keys += ["blend"] * (len(cell.models) > 1 or cell.kind == "tile")
    keys += ["seeds"] * (len(cell.seeds) > 1)
    return {
        "task": cell.task,
        "contender": cell.contender,
        "seed": cell.seed,
        "tuning": cell.tuning,
        "model": "+".join(cell.models) or FLOOR,
        "recipe": {key: dumped[key] for key in keys},
        "data": fingerprint(cell.comparison.tasks[cell.task].files(sources)),
    }


def _results(cell: Cell, sources: Sources, work: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Train every part; yield the results of all cells that it serves, the cell's own last."""
    task = cell.comparison.tasks[cell.task]
    make = task.tuning_parts if cell.tuning else task.parts
    if make is None:
        raise UsageError(f"task '{cell.task}': has no part for tuning")
    parts = make(sources, cell.seed, work / "data")
    done = [_run_part(cell, part, work / part.name) for part in parts]
    families, manifest = sample_families(sources.sample), sample_manifest(sources.sample)
    for judged in (*cell.parts_judged, cell):
        outcomes = [outcome[judged.contender] for outcome in done]
        graphs: dict[str, Any] = {}
        for part, outcome in zip(parts, outcomes, strict=True):
            for file in part.judged:
                known = {
                    "split": file.split,
                    "family": families.get(file.submission_id, family_of(file)),
                    "part": part.name,
                    "again_tau": manifest.get(file.submission_id, {}).get("again_tau"),
                }
                graphs[file.submission_id] = known | outcome.graphs[file.submission_id]
        yield judged, _record(parts, [outcome.points for outcome in outcomes], graphs)


def _record(
    parts: Sequence[Part], points: Sequence[list[dict[str, Any]]], graphs: dict[str, Any]
) -> dict[str, Any]:
    curve = [join_points(at) for at in zip(*points, strict=True)]
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


@dataclass(frozen=True)
class Outcome:
    """What one training gave: metrics by graph, and the learning curve with its last point."""

    graphs: dict[str, dict[str, Any]]
    points: list[dict[str, Any]]


def _run_part(cell: Cell, part: Part, folder: Path) -> dict[str, Outcome]:
    """Train once; return the outcome of each contender that is judged by it."""
    import lightgbm  # noqa: F401  so that its import is not on the clock

    recipe, collection = cell.recipe(), part.train[0].collection
    run_dirs = {name: folder / name for name in cell.members}
    first = cell.models[0]
    every = getattr(recipe, first).training.checkpoint_every if cell.has_curve else 1
    snapshots = Snapshots(next(iter(run_dirs.values())), every)
    progress = snapshots if cell.has_curve else None
    seconds = {}
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, part.train, seed, run_dirs[name], progress)
        train_model(job, collection, resume=False)
        seconds[name] = snapshots.clock.read()
    graphs = {file.submission_id: read_graph(file) for file in part.judged}
    points = []
    for facts, weights in snapshots.taken:
        ranker = _ranker_at(snapshots.run_dir, weights, folder / "at" / str(facts["step"]))
        taus = {name: judge(ranker, graph)["kendall_tau"] for name, graph in graphs.items()}
        points.append({**facts, "kendall_tau": taus})
    rankers = {name: load_model(run_dir) for name, run_dir in run_dirs.items()}
    outcomes = {}
    for judged in (*cell.parts_judged, cell):
        own = {name: rankers[name] for name in judged.members} or {FLOOR: FLOORS[collection.kind]}
        mixing = recipe_mixing(judged.recipe().blend, collection.kind, list(own))
        ranker = Ensemble(collection, own, mixing)
        found = {name: judge(ranker, graph) | facts_of(graph) for name, graph in graphs.items()}
        taus = {name: metrics["kendall_tau"] for name, metrics in found.items()}
        last = {
            "step": max((n_steps(recipe, model) for model in judged.models), default=0),
            **seconds.get(list(own)[-1], {"wall_s": 0.0, "cpu_s": 0.0}),
            "kendall_tau": taus,
        }
        outcomes[judged.contender] = Outcome(found, [*points, last])
    return outcomes


def _ranker_at(run_dir: Path, weights: dict[str, Tensor], folder: Path) -> Ranker:
    """Load the run's model with earlier weights, by way of a run folder of its own."""
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    folder.mkdir(parents=True)
    save_tensors(folder / WEIGHTS, tensors | weights, facts)
    shutil.copy(run_dir / CONFIG, folder / CONFIG)
    mark_done(folder)
    return load_model(folder)
