"""One cell of the comparison: a task, a contender and a seed, trained and judged into JSON."""

import json
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.tasks import SAMPLE_FURTHER, TASKS, WITHIN_GRAPH, Part, Sources, by_source
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.metrics import TILE_PICKS, slowdown_at_k
from common.reproducibility import revision
from data.families import family_of
from data.graph_store.stored_graph import fingerprint, read_graph
from data.graphs.graph import Graph, TileGraph, distinct_configs
from data.graphs.noise import measure_noise
from data.labels import labels_of, read_withheld
from data.manifest import read_manifest
from data.tree import Collection, GraphFile
from ensembles.blend import recipe_blend
from ensembles.ensemble import Ensemble
from ensembles.picks import top_k_to_measure
from models.config.custom import is_own, short_name
from models.config.recipe import Recipe, load_recipe
from models.registry import Ranker, TrainJob, load_model
from models.run_folder import first_difference
from models.train import sources_of, train_model
from models.trees.linear import FLOORS
from pipeline.run.report import environment
from submissions.score import DIVERSIFIED, score_graph

SEED_STEP = 1000  # from a cell's seed to its next


@dataclass(frozen=True)
class Contender:
    """Models of the registry, by a recipe with overrides; several models, or seeds, are blended."""

    models: tuple[str, ...] = ()  # none for the floor, which ranks without training
    recipe: str = "cpu"
    overrides: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None  # those that it can learn; None for all
    # The recipe and models in tasks that ask for further configs of one graph.
    within_graph: tuple[str, tuple[str, ...]] | None = None
    n_seeds: int = 1


NETWORK, BY_TILE = "cross_config_sage", "late_fusion_sage"
SHIPPED = "shipped"  # what the recipe `cpu` does
OF_NETWORKS = tuple(task for task in TASKS if task != SAMPLE_FURTHER)  # no 13 trainings
SHIPPED_FOR_LAYOUTS = Contender(
    load_recipe("cpu").layout.models,
    within_graph=("within_graph", load_recipe("within_graph").layout.models),
    n_seeds=2,
)
SHIPPED_FOR_TILES = Contender(load_recipe("cpu").tile.models)
# By kind of config, in the page's order: what needs no training, the dataset's baselines, others'
# models, and ours from the simplest on.
CONTENDERS = {
    "layout": {
        "floor": Contender(),
        "gcn": Contender(("baseline_gcn",), tasks=OF_NETWORKS),
        "segments": Contender(("segment_sage",), "segments", tasks=OF_NETWORKS),
        "tgraph": Contender(("tgraph",), "reference", tasks=OF_NETWORKS),
        "linear": Contender(("layout_linear",)),
        "boosting": Contender(("layout_boosting",)),
        "columns": Contender(("config_columns_boosting",), "within_graph", tasks=WITHIN_GRAPH),
        "no-attention": Contender(
            (NETWORK,), overrides=(f"{NETWORK}.cross_config=false",), tasks=OF_NETWORKS
        ),
        "network": Contender(
            (NETWORK,), tasks=OF_NETWORKS, within_graph=("within_graph", (NETWORK,))
        ),
        SHIPPED: SHIPPED_FOR_LAYOUTS,
    },
    "tile": {
        "floor": Contender(),
        "early-join": Contender(("early_fusion_sage",)),
        "late-join": Contender((BY_TILE,), overrides=(f"{BY_TILE}.cross_config=false",)),
        "linear": Contender(("tile_linear",)),
        "boosting": Contender(("tile_boosting",)),
        "network": Contender((BY_TILE,)),
        SHIPPED: SHIPPED_FOR_TILES,
    },
}


def contenders_of(task: str) -> list[str]:
    """Return the names of those that can learn a task."""
    known = CONTENDERS[TASKS[task].kind]
    return [name for name, own in known.items() if task in (own.tasks or (task,))]


@dataclass(frozen=True)
class Cell:
    """What is trained and judged, with recipe keys on top of the contender's own."""

    task: str
    contender: str  # or a network of one's own, "package.module:Class"
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def known_contender(self) -> Contender:
        """Return the contender, as it is for the task; one's own is trained as our network is."""
        kind, name = TASKS[self.task].kind, short_name(self.contender)
        if is_own(self.contender):
            keys = (f'{kind}.models=["{self.contender}"]',)
            known = Contender((name,), overrides=keys, within_graph=("within_graph", (name,)))
        else:
            known = CONTENDERS[kind][self.contender]
        if known.within_graph is None or self.task not in WITHIN_GRAPH:
            return known
        recipe, models = known.within_graph
        return replace(known, recipe=recipe, models=models)

    @property
    def members(self) -> dict[str, tuple[str, int]]:
        """Return what is trained, a model and a seed, by member name.

        Further seeds are no other cell's first.
        """
        contender = self.known_contender
        seeds = [self.seed + number * SEED_STEP for number in range(contender.n_seeds)]
        return {f"{m}-seed{seed}": (m, seed) for m in contender.models for seed in seeds}

    @property
    def is_served(self) -> bool:
        """Tell whether what is shipped has all its members, trained alike: it needs no training."""
        shipped, own = replace(self, contender=SHIPPED), self.known_contender
        return (
            self != shipped
            and self.members.keys() <= shipped.members.keys()
            and (not own.models or own.recipe == shipped.known_contender.recipe)
            and not own.overrides
        )

    @property
    def judged_with(self) -> "list[Cell]":
        """Return the cells that this one's training serves too."""
        names = CONTENDERS[TASKS[self.task].kind]
        others = [replace(self, contender=name) for name in names]
        return [cell for cell in others if cell.is_served] if self.contender == SHIPPED else []

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
    _check_seeds_alike(path, cell, head)
    work = out / "work" / path.stem
    shutil.rmtree(work, ignore_errors=True)
    for judged, results in _results(cell, sources, work).items():
        text = json.dumps(cell_head(judged, sources) | results, indent=1, allow_nan=False)
        write_text(judged.path(out), text + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return True


def _check_seeds_alike(path: Path, cell: Cell, head: dict[str, Any]) -> None:
    """Refuse a cell whose other seeds, a row with it, were made with something else."""
    for other in sorted(path.parent.glob(f"{cell.task}--{cell.contender}--*.json")):
        old = json.loads(other.read_text(encoding="utf-8"))
        of_seed = {"seed": cell.seed, "recipe": {**old["recipe"], "seeds": head["recipe"]["seeds"]}}
        made = {key: (old | of_seed).get(key) for key in {*head, "source"}}
        if difference := first_difference(made, head):
            raise UsageError(f"{other}: was made with {difference}; choose another --out")


def cell_head(cell: Cell, sources: Sources) -> dict[str, Any]:
    """Return what decides a cell's outcome, but for the code; of a model of one's own that too."""
    dumped = cell.recipe().model_dump(mode="json")
    keys = ["name", "threads", "seeds", "features", "blend", *cell.known_contender.models]
    return {
        "task": cell.task,
        "contender": cell.contender,
        "seed": cell.seed,
        "recipe": {key: dumped[key] for key in keys},
        "data": fingerprint(TASKS[cell.task].files(sources)),
        **sources_of(cell.recipe(), cell.known_contender.models),
    }


def _results(cell: Cell, sources: Sources, work: Path) -> dict[Cell, dict[str, Any]]:
    """Train on each part; return what its judged graphs say of the cell and all that it serves."""
    import lightgbm  # noqa: F401  so that its import is not on the clock

    made = {"environment": environment(1), "revision": revision(), "set": cell.overrides}
    results: dict[Cell, dict[str, Any]] = {
        judged: {"graphs": {}, **made, "train_cpu_s": 0.0} for judged in (*cell.judged_with, cell)
    }
    measured = read_manifest(sources.sample)["graphs"]
    parts = TASKS[cell.task].parts(sources, cell.seed, work / "data")
    if not cell.recipe().layout.together and TASKS[cell.task].kind == "layout":
        parts = [half for part in parts for half in by_source(part)]
    for number, part in enumerate(parts, start=1):
        begin = time.perf_counter()
        rankers, cpu_s = _trained(cell, part, work / part.name)
        graphs = [(file, read_judged(file, sources)) for file in part.judged]
        for judged, found in results.items():
            found["train_cpu_s"] += sum(cpu_s[name] for name in judged.members)
            blend = _blended(judged, rankers, part.train[0].collection)
            for file, graph in graphs:
                known = measured.get(file.submission_id, {})
                facts = {
                    "split": file.split,
                    "family": known.get("family", family_of(file)),
                    "again_tau": known.get("again_tau"),
                }
                found["graphs"][file.submission_id] = facts | judge(blend, graph)
        told = f"{work.name}: {part.name}, {number} of {len(parts)}"
        print(f"{told}: {time.perf_counter() - begin:.1f} s", flush=True)  # noqa: T201
    return results


def read_judged(file: GraphFile, sources: Sources) -> Graph:
    """Read a graph with its runtimes, which lie apart for those of the sample's test split."""
    graph, name = read_graph(file), file.submission_id
    if graph.is_labelled:
        return graph
    labels = read_withheld(sources.sample)[name]
    if isinstance(graph, TileGraph) and labels.normalizers is not None:
        graph = replace(graph, runtime_normalizers=labels.normalizers)
    return replace(graph, runtime_ns=labels.runtime_ns)


def trained_ranker(cell: Cell, part: Part, folder: Path) -> Ensemble:
    """Train a cell's models on a part, below `folder`, and return them as one."""
    rankers, _ = _trained(cell, part, folder)
    return _blended(cell, rankers, part.train[0].collection)


def _trained(cell: Cell, part: Part, folder: Path) -> tuple[dict[str, Ranker], dict[str, float]]:
    recipe, cpu_s = cell.recipe(), {}
    for name, (model, seed) in cell.members.items():
        begin = time.process_time()
        job = TrainJob(model, recipe, part.train, seed, folder / name)
        train_model(job, part.train[0].collection, resume=False)
        cpu_s[name] = time.process_time() - begin
    return {name: load_model(folder / name, recipe.trust) for name in cell.members}, cpu_s


def _blended(cell: Cell, rankers: dict[str, Ranker], collection: Collection) -> Ensemble:
    own = {name: rankers[name] for name in cell.members} or {"floor": FLOORS[collection.kind]}
    return Ensemble(collection, own, recipe_blend(cell.recipe().blend, list(own)))


def judge(ranker: Ranker, graph: Graph) -> dict[str, Any]:
    """Return all metrics of one graph's scores, and its noise ceiling.

    The tile score is that of the first five by score; the diversified five have their own figure.

    Raises:
        PipelineError: a score is not finite, or the runtimes give no order.
    """
    begin = time.process_time()
    scores = ranker.score(graph)
    rank_cpu_s = time.process_time() - begin
    if not np.isfinite(scores).all():
        raise PipelineError(f"{graph.file.path}: a config's score is not finite")
    ranking = np.argsort(scores, kind="stable")
    metrics = score_graph(graph.file.collection, ranking, labels_of(graph))
    five = top_k_to_measure(scores, graph, TILE_PICKS)
    metrics[DIVERSIFIED] = slowdown_at_k(five, graph.runtime, TILE_PICKS)
    if metrics["kendall_tau"] is None:
        raise PipelineError(f"{graph.file.path}: its runtimes give no order; it cannot be judged")
    return metrics | {"noise": _noise(graph), "rank_cpu_s": rank_cpu_s}


def _noise(graph: Graph) -> dict[str, float] | None:
    _, group = distinct_configs(graph)
    noise = measure_noise(graph.runtime_ns, group)
    if noise is None or not np.isfinite(noise.tau):
        return None
    return {"n_repeated": noise.n_repeated, "tau": noise.tau, "best_tau": noise.best_tau}
