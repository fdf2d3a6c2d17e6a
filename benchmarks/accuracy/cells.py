"""Train and judge one cell of the comparison (a task, a candidate, a seed), and write JSON."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy.tasks import (
    SAMPLE_FURTHER,
    SIBLINGS,
    TASKS,
    WITHIN_GRAPH,
    Fold,
    Sources,
    by_source,
)
from common.errors import PipelineError, UsageError
from common.files import write_text
from common.metrics import TILE_PICKS
from common.reproducibility import revision
from data.families import family_of
from data.graph_store.stored_graph import fingerprint, read_graph
from data.graphs.graph import Graph, TileGraph, distinct_configs
from data.graphs.noise import measure_noise
from data.labels import labels_of, read_withheld
from data.manifest import read_manifest
from data.tree import GraphFile
from ensembles.blend import recipe_blend
from ensembles.ensemble import Ensemble
from ensembles.picks import top_k_to_measure
from models.config.custom import is_own, short_name
from models.config.recipe import Recipe, load_recipe
from models.registry import Ranker, TrainJob, load_model
from models.run_folder import first_difference
from models.train import sources_of, train_model
from models.trees.baseline import BASELINES
from pipeline.run.report import environment
from submissions.score import score_graph

# Distance between the seeds of one cell, so that two cells never share a seed.
SEED_STEP = 1000


class Contender(NamedTuple):
    """Models of a recipe, whose scores are blended. The baseline has none.

    Attributes:
        tasks: Tasks that the models can learn; None for all.
        within_graph: Recipe and models of the tasks on new configs of a known program.
    """

    models: tuple[str, ...] = ()
    recipe: str = "cpu"
    overrides: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None
    within_graph: tuple[str, tuple[str, ...]] | None = None
    n_seeds: int = 1


NETWORK, BY_TILE = "cross_config_sage", "late_fusion_sage"
BASELINE, DEFAULT = "baseline", "default"
# Suffix of a network that scores each config without the others.
ALONE = "-alone"
# The default without the trees on config columns.
NO_SIBLINGS = "default-no-siblings"
COLUMNS = "config_columns_boosting"
# Networks are left out of a task that would take 17 trainings of each, and of one about trees.
NETWORK_TASKS = tuple(task for task in TASKS if task not in (SAMPLE_FURTHER, SIBLINGS))
# The winner's training takes days of a GPU. Its warm-up is 5 % of the steps, here as well.
SCALED_DOWN = (
    *("collection={}", "tgraph.training.steps=250", "tgraph.training.warmup_steps=12"),
    *("tgraph.training.checkpoint_every=100", "tgraph.training.log_every=20"),
)
# By kind of config, in the order of the page: the untrained baseline, the baselines of the dataset,
# models of other authors, and our models from the simplest to the default.
CONTENDERS = {
    "layout": {
        BASELINE: Contender(),
        "baseline_gcn": Contender(("baseline_gcn",), tasks=NETWORK_TASKS),
        "segment_sage": Contender(("segment_sage",), "segments", tasks=NETWORK_TASKS),
        "tgraph": Contender(("tgraph",), "reference", SCALED_DOWN, tasks=NETWORK_TASKS),
        "layout_linear": Contender(("layout_linear",)),
        "layout_boosting": Contender(("layout_boosting",)),
        COLUMNS: Contender((COLUMNS,), "within_graph", tasks=(*WITHIN_GRAPH, SIBLINGS)),
        f"{NETWORK}{ALONE}": Contender(
            (NETWORK,), overrides=(f"{NETWORK}.cross_config=false",), tasks=NETWORK_TASKS
        ),
        NETWORK: Contender(
            (NETWORK,), tasks=NETWORK_TASKS, within_graph=("within_graph", (NETWORK,))
        ),
        NO_SIBLINGS: Contender(
            tuple(model for model in load_recipe("cpu").layout.models if model != COLUMNS),
            tasks=(SIBLINGS,),
            n_seeds=2,
        ),
        DEFAULT: Contender(
            load_recipe("cpu").layout.models,
            within_graph=("within_graph", load_recipe("within_graph").layout.models),
            n_seeds=2,
        ),
    },
    "tile": {
        BASELINE: Contender(),
        "early_fusion_sage": Contender(("early_fusion_sage",)),
        f"{BY_TILE}{ALONE}": Contender((BY_TILE,), overrides=(f"{BY_TILE}.cross_config=false",)),
        "tile_linear": Contender(("tile_linear",)),
        "tile_boosting": Contender(("tile_boosting",)),
        BY_TILE: Contender((BY_TILE,)),
        DEFAULT: Contender(load_recipe("cpu").tile.models),
    },
}


def contenders_of(task: str) -> list[str]:
    """Return the names of the contenders that can learn a task."""
    contenders = CONTENDERS[TASKS[task].kind].items()
    return [name for name, contender in contenders if task in (contender.tasks or (task,))]


class Cell(NamedTuple):
    """Trainings of a contender, or of a custom network "package.module:Class", on a task."""

    task: str
    name: str
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def contender(self) -> Contender:
        """Return the contender for the task. A custom model is trained like `cross_config_sage`."""
        kind, short = TASKS[self.task].kind, short_name(self.name)
        if is_own(self.name):
            keys = (f'{kind}.models=["{self.name}"]',)
            contender = Contender((short,), overrides=keys, within_graph=("within_graph", (short,)))
        else:
            contender = CONTENDERS[kind][self.name]
        if contender.within_graph is None or self.task not in WITHIN_GRAPH:
            return contender
        recipe, models = contender.within_graph
        return contender._replace(recipe=recipe, models=models)

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Return model and seed of each training, by member name."""
        models, n_seeds = self.contender.models, self.contender.n_seeds
        seeds = [self.seed + i * SEED_STEP for i in range(n_seeds)]
        return {f"{model}-seed{seed}": (model, seed) for model in models for seed in seeds}

    def path(self, out: Path) -> Path:
        """Return the path of the cell's JSON file."""
        return out / "cells" / f"{self.task}--{self.name}--{self.seed}.json"

    def recipe(self) -> Recipe:
        """Return the recipe, with one thread."""
        seeds = list(dict.fromkeys(seed for _, seed in self.members.values())) or [self.seed]
        run_keys = ("threads=1", f"seeds={seeds}")
        overrides = [*self.contender.overrides, *self.overrides, *run_keys]
        return load_recipe(self.contender.recipe, overrides)

    def head(self, sources: Sources) -> dict[str, Any]:
        """Return the inputs that decide the result, except the code of built-in models."""
        recipe, models = self.recipe(), self.contender.models
        keys = ("name", "threads", "seeds", "features", "blend", *models)
        return {
            "task": self.task,
            "candidate": self.name,
            "seed": self.seed,
            "recipe": recipe.model_dump(mode="json", include=set(keys)),
            "data": fingerprint(TASKS[self.task].files(sources)),
            **sources_of(recipe, models),
        }


def run_cell(cell: Cell, sources: Sources, out: Path) -> bool:
    """Train and judge one cell, and write its file, unless it exists. A killed cell restarts."""
    path, head = cell.path(out), cell.head(sources)
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        if difference := first_difference({key: old.get(key) for key in head}, head):
            raise UsageError(f"{path}: was written with {difference}; choose another --out")
        return False
    work = out / "work" / path.stem
    shutil.rmtree(work, ignore_errors=True)
    text = json.dumps(head | _result(cell, sources, work), indent=1, allow_nan=False)
    write_text(path, text + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return True


def _result(cell: Cell, sources: Sources, work: Path) -> dict[str, Any]:
    # An import during the training would count as training time.
    import lightgbm  # noqa: F401

    graphs, train_cpu_s = dict[str, dict[str, Any]](), 0.0
    manifest, task = read_manifest(sources.sample)["graphs"], TASKS[cell.task]
    folds = task.folds(sources, cell.seed, work / "data")
    if task.kind == "layout" and not cell.recipe().layout.together:
        folds = [half for fold in folds for half in by_source(fold)]
    for number, fold in enumerate(folds, start=1):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        ensemble = _train(cell, fold, work / fold.name)
        train_cpu_s += time.process_time() - begin_cpu
        for file in fold.judged:
            entry = manifest.get(file.submission_id, {})
            graphs[file.submission_id] = {
                "split": file.split,
                "family": entry.get("family", family_of(file)),
                "again_tau": entry.get("again_tau"),
                **judge(ensemble, read_judged(file, sources)),
            }
        name = f"{work.name}: {fold.name}, {number} of {len(folds)}"
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)  # noqa: T201
    facts = {"environment": environment(1), "revision": revision(), "set": cell.overrides}
    return {"graphs": graphs, **facts, "train_cpu_s": train_cpu_s if cell.members else 0.0}


def read_judged(file: GraphFile, sources: Sources) -> Graph:
    """Read a graph with its runtimes, also the withheld ones of the sample's test split."""
    graph = read_graph(file)
    if graph.is_labelled:
        return graph
    labels = read_withheld(sources.sample)[file.submission_id]
    if isinstance(graph, TileGraph) and labels.normalizers is not None:
        graph = replace(graph, runtime_normalizers=labels.normalizers)
    return replace(graph, runtime_ns=labels.runtime_ns)


def _train(cell: Cell, fold: Fold, folder: Path) -> Ensemble:
    recipe, collection = cell.recipe(), fold.train[0].collection
    rankers: dict[str, Ranker] = {}
    for name, (model, seed) in cell.members.items():
        job = TrainJob(model, recipe, fold.train, seed, folder / name)
        train_model(job, collection, resume=False)
        rankers[name] = load_model(folder / name, recipe.trust)
    members = rankers or {BASELINE: BASELINES[collection.kind]}
    return Ensemble(collection, members, recipe_blend(recipe.blend, list(members)))


def judge(ranker: Ranker, graph: Graph) -> dict[str, Any]:
    """Return the metrics of one graph, its noise ceiling, and the processor seconds of ranking."""
    begin = time.process_time()
    scores = ranker.score(graph)
    rank_cpu_s = time.process_time() - begin
    if scores is None or not np.isfinite(scores).all():
        raise PipelineError(f"{graph.file.path}: a config's score is missing or not finite")
    ranking = np.argsort(scores, kind="stable")
    five = top_k_to_measure(scores, graph, TILE_PICKS)
    metrics = score_graph(graph.file.collection, ranking, labels_of(graph), to_measure=five)
    if metrics["kendall_tau"] is None:
        raise PipelineError(f"{graph.file.path}: its runtimes give no order; it cannot be judged")
    noise, ceiling = measure_noise(graph.runtime_ns, distinct_configs(graph)[1]), None
    if noise is not None and np.isfinite(noise.tau):
        ceiling = {key: getattr(noise, key) for key in ("n_repeated", "tau", "best_tau")}
    return metrics | {"noise": ceiling, "rank_cpu_s": rank_cpu_s}
