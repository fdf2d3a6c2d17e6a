"""One cell of the comparison: a task, a contender and a seed, trained and judged into JSON."""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.tasks import (
    TASKS,
    WITHIN_GRAPH,
    Part,
    Sources,
    Task,
    sample_families,
    sample_manifest,
)
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.git import revision
from data.audit.noise import measure_noise
from data.graph_store.stored_graph import fingerprint
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph, TileGraph
from data.read import read_graph
from data.tree import Collection
from ensembles.choice.in_run import recipe_mixing
from ensembles.ensemble import Ensemble
from models.config.recipe import Recipe, load_recipe
from models.run_folder import first_difference
from models.train import load_model, train_model
from models.training.folds import family_of
from models.training.jobs import Ranker, TrainJob
from models.trees.baselines import FLOORS
from pipeline.run.report import environment
from submissions.labels import Labels
from submissions.score import score_graph

SEED_STEP = 1000  # from a cell's seed to its next


@dataclass(frozen=True)
class Contender:
    """Models of the registry, by a recipe with overrides; several models, or seeds, are blended."""

    models: tuple[str, ...]  # none for the floor, which ranks without training
    recipe: str = "cpu"
    overrides: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None  # those that it can learn; None for all
    # The recipe and models in tasks that ask for further configs of one graph.
    within_graph: tuple[str, tuple[str, ...]] | None = None
    n_seeds: int = 1
    part_of: str | None = None  # the contender that trains it on the way; it has no training itself

    def on(self, task: str) -> "Contender":
        """Return what it is for a task."""
        if self.within_graph is None or task not in WITHIN_GRAPH:
            return self
        recipe, models = self.within_graph
        return replace(self, recipe=recipe, models=models)


NETWORK = ("cross_config_sage",)
WITHIN = ("within_graph", NETWORK)
ZERO, PLAIN = "features.padding=zero", "cross_config_sage.cross_config=false"
LAYOUT_CONTENDERS = {
    "ours": Contender(NETWORK, within_graph=WITHIN),
    "no-attention": Contender(NETWORK, overrides=(PLAIN,)),
    "zero-padding": Contender(NETWORK, overrides=(ZERO,), within_graph=WITHIN),
    "plain": Contender(NETWORK, overrides=(ZERO, PLAIN), within_graph=WITHIN),
    "two-seeds": Contender(NETWORK, within_graph=WITHIN, n_seeds=2, part_of="blend"),
    "blend": Contender(
        (*NETWORK, "layout_boosting"),
        within_graph=("within_graph", (*NETWORK, "config_columns_boosting")),
        n_seeds=2,
    ),
    "reference": Contender(("tgraph",), "reference"),
    "gcn": Contender(("baseline_gcn",)),
    "boosting": Contender(("layout_boosting",)),
    "linear": Contender(("layout_linear",)),
    "columns": Contender(("config_columns_boosting",), "within_graph", tasks=WITHIN_GRAPH),
}
BEST_FIRST = "blend.tile_spread=0"
SHIPPED = load_recipe("cpu").tile.models
TILE_CONTENDERS = {
    "ours": Contender(SHIPPED),
    "best-first": Contender(SHIPPED, overrides=(BEST_FIRST,), part_of="ours"),
    "late-fusion": Contender(("late_fusion_sage",), overrides=(BEST_FIRST,)),
    "no-attention": Contender(
        ("late_fusion_sage",), overrides=(BEST_FIRST, "late_fusion_sage.cross_config=false")
    ),
    "early-fusion": Contender(("early_fusion_sage",), overrides=(BEST_FIRST,)),
    "early-spread": Contender(("early_fusion_sage",), part_of="early-fusion"),
    "boosting": Contender(("tile_boosting",), overrides=(BEST_FIRST,)),
    "boosting-spread": Contender(("tile_boosting",), part_of="boosting"),
    "linear": Contender(("tile_linear",), overrides=(BEST_FIRST,)),
    "floor": Contender((), overrides=(BEST_FIRST,), part_of="linear"),
    "floor-spread": Contender((), part_of="linear"),
}
CONTENDERS = {"layout": LAYOUT_CONTENDERS, "tile": TILE_CONTENDERS}


@dataclass(frozen=True)
class Cell:
    """What is trained and judged, with recipe keys on top of the contender's own."""

    task: str
    contender: str
    seed: int
    overrides: tuple[str, ...] = ()
    kind: str = "layout"

    @property
    def known_task(self) -> Task:
        return TASKS[self.kind][self.task]

    @property
    def known_contender(self) -> Contender:
        """Return the contender, as it is for the task."""
        return CONTENDERS[self.kind][self.contender].on(self.task)

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Return what is trained, a model and a seed, by member name.

        Further seeds are no other cell's first.
        """
        contender = self.known_contender
        seeds = [self.seed + number * SEED_STEP for number in range(contender.n_seeds)]
        return {f"{m}-seed{seed}": (m, seed) for m in contender.models for seed in seeds}

    @property
    def parts_judged(self) -> "list[Cell]":
        """Return the cells that need no more than some of this one's members."""
        known = CONTENDERS[self.kind].items()
        return [replace(self, contender=n) for n, c in known if c.part_of == self.contender]

    def path(self, out: Path) -> Path:
        """Return where the cell's JSON file lies."""
        return out / "cells" / f"{self.task}--{self.contender}--{self.seed}.json"

    def recipe(self) -> Recipe:
        """Return the recipe, with one thread."""
        seeds = list(dict.fromkeys(seed for _, seed in self.members.values())) or [self.seed]
        fixed = ("threads=1", f"seeds={seeds}")
        contender = self.known_contender
        return load_recipe(contender.recipe, [*contender.overrides, *self.overrides, *fixed])


def run_cell(cell: Cell, sources: Sources, out: Path) -> bool:
    """Train, judge and write one cell, unless it is there; begins anew where one was interrupted.

    Raises:
        UsageError: the cell is there, but by another recipe or other data.
        PipelineError: as the model's training.
    """
    path, head = cell.path(out), cell_head(cell, sources)
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        difference = first_difference({key: old.get(key) for key in head}, head)
        if difference:
            raise UsageError(f"{path}: was made with {difference}; choose another --out")
        return False
    work = out / "work" / path.stem
    shutil.rmtree(work, ignore_errors=True)
    for judged, results in _results(cell, sources, work):
        text = json.dumps(cell_head(judged, sources) | results, indent=1, allow_nan=False)
        write_text(judged.path(out), text + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return True


def cell_head(cell: Cell, sources: Sources) -> dict[str, Any]:
    """Return what decides a cell's outcome, but for the code."""
    dumped = cell.recipe().model_dump(mode="json")
    keys = ["name", "threads", "seeds", "features", "blend", *cell.known_contender.models]
    return {
        "task": cell.task,
        "contender": cell.contender,
        "seed": cell.seed,
        "recipe": {key: dumped[key] for key in keys},
        "data": fingerprint(cell.known_task.files(sources)),
    }


def _results(cell: Cell, sources: Sources, work: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    import lightgbm  # noqa: F401  so that its import is not on the clock

    served = (*cell.parts_judged, cell)
    made = {"environment": environment(1), "revision": revision()}
    results: dict[Cell, dict[str, Any]] = {
        judged: {"graphs": {}, "wall_s": 0.0, "cpu_s": 0.0, **made} for judged in served
    }
    families, manifest = sample_families(sources.sample), sample_manifest(sources.sample)
    for part in cell.known_task.parts(sources, cell.seed, work / "data"):
        rankers, seconds = _trained(cell, part, work / part.name)
        collection = part.train[0].collection
        blends = {judged: _blended(judged, rankers, collection) for judged in results}
        for file in part.judged:
            facts = {
                "split": file.split,
                "family": families.get(file.submission_id, family_of(file)),
                "again_tau": manifest.get(file.submission_id, {}).get("again_tau"),
            }
            graph = read_graph(file)
            for judged, found in results.items():
                found["graphs"][file.submission_id] = facts | judge(blends[judged], graph)
        for judged, found in results.items():
            own = [seconds[name] for name in judged.members] or [(0.0, 0.0)]
            found["wall_s"] += own[-1][0]
            found["cpu_s"] += own[-1][1]
    yield from results.items()


def _trained(
    cell: Cell, part: Part, folder: Path
) -> tuple[dict[str, Ranker], dict[str, tuple[float, float]]]:
    recipe, seconds = cell.recipe(), {}
    wall, cpu = time.perf_counter(), time.process_time()
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, part.train, seed, folder / name)
        train_model(job, part.train[0].collection, resume=False)
        seconds[name] = (time.perf_counter() - wall, time.process_time() - cpu)
    return {name: load_model(folder / name) for name in cell.members}, seconds


def _blended(cell: Cell, rankers: dict[str, Ranker], collection: Collection) -> Ensemble:
    own = {name: rankers[name] for name in cell.members} or {"floor": FLOORS[collection.kind]}
    return Ensemble(collection, own, recipe_mixing(cell.recipe().blend, collection.kind, list(own)))


def judge(ranker: Ranker, graph: Graph) -> dict[str, Any]:
    """Return all metrics of one graph, as a submission is judged, and its noise ceiling.

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
    return metrics | {"noise": _noise(graph)}


def _noise(graph: Graph) -> dict[str, float] | None:
    _, group = distinct_configs(graph)
    noise = measure_noise(graph.runtime_ns, group)
    if noise is None or not np.isfinite(noise.tau):
        return None
    return {"n_repeated": noise.n_repeated, "tau": noise.tau, "best_tau": noise.best_tau}
