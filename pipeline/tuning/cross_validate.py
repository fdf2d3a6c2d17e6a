"""How well a recipe's model ranks train graphs that it has not learned from."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from common.metrics import kendall_tau, tile_score
from data.graph_store.fingerprint import fingerprint
from data.graphs.graph import Graph, TileGraph
from data.read import read_graph
from data.tree import Collection, GraphFile
from models.config.recipe import Recipe
from models.run_folder import begin, mark_done
from models.shared_training import SHARED_FOLDER, shared_model, shared_steps
from models.train import load_model, train_model
from models.training.folds import family_of
from models.training.jobs import Progress, Ranker, TrainJob
from pipeline.tuning.judged_models import blended, judged_models, ranker_of_kept
from pipeline.tuning.study_config import BLEND

REPORT = "report.json"


@dataclass(frozen=True)
class CrossValidation:
    """What a model scored on held-out graphs; higher is better.

    Attributes:
        metric: "kendall_tau" or "tile_score".
        value: mean over the folds.
        folds: per fold, the mean over its held-out graphs.
        per_graph: by graph name.
        training_seconds: of all folds; what an earlier call had trained takes none.
        inference_seconds: to score 1,000 configs, the mean over all held-out ones.
    """

    metric: str
    value: float
    folds: tuple[float, ...]
    per_graph: dict[str, float]
    training_seconds: float
    inference_seconds: float


@dataclass
class _Clock:
    """How long it took to train, and to score how many configs, so far."""

    training_seconds: float = 0.0
    seconds: float = 0.0
    configs: int = 0


@dataclass(frozen=True)
class _Fold:
    """What is learned from, what is held out, and where its trainings go."""

    learned: Sequence[GraphFile]
    held_out: Sequence[GraphFile]
    shared: Sequence[GraphFile]
    folder: Path
    shared_folder: Path
    kept_scores: Path | None


def cross_validate(
    recipe: Recipe,
    model: str,
    folds: Sequence[Sequence[GraphFile]],
    run_dir: Path,
    *,
    shared: Sequence[GraphFile] = (),
    kept_scores: Path | None = None,
    progress: Progress | None = None,
    after_fold: Callable[[Mapping[str, float]], None] = lambda values: None,
) -> CrossValidation:
    """Train `model` once per fold on the other folds' graphs, and judge it on the fold's.

    Of "blend", all the recipe's models of the collection's kind are trained, one seed each, and
    judged together as the recipe blends them.

    Goes on with what a killed call has left in `run_dir`, which ends up holding config.toml, a
    run folder per fold, report.json and DONE. The training's seed is the recipe's first.

    Args:
        recipe: of all its models only `model` is trained, or those of its blend.
        folds: labelled graphs of one collection, each family in one fold.
        shared: train graphs of all layout collections, for a recipe whose models begin from a
            shared one. That of a fold learns from no graph of the fold's families, whatever its
            collection.
        kept_scores: a folder where cross-validations of blends share what their members score, so
            that members alike are trained once; that takes no time then. None = train all.
        after_fold: told each fold's value per graph, in the order of the folds and their graphs;
            what it raises ends the cross-validation, and is raised.

    Raises:
        UsageError: `run_dir` belongs to another recipe or other folds.
        PipelineError: as the model's training, or its scores are not finite.
    """
    collection = folds[0][0].collection
    config = {
        "model": model,
        "collection": collection.name,
        "folds": [fingerprint(fold) for fold in folds],
        "recipe": recipe.model_dump(mode="json"),
    }
    if any(shared_steps(recipe, own) for own in judged_models(recipe, model, collection.kind)):
        config["shared_data"] = fingerprint(shared)
    begin(run_dir, config, resume=True)
    metric, judge = METRICS[collection.kind]
    per_graph: dict[str, float] = {}
    means, clock = [], _Clock()
    for number, held_out in enumerate(folds):
        fold = _Fold(
            learned=[file for other in folds if other is not held_out for file in other],
            held_out=held_out,
            shared=_less(shared, held_out),
            folder=run_dir / f"fold-{number}",
            shared_folder=run_dir / SHARED_FOLDER / f"fold-{number}",
            kept_scores=kept_scores,
        )
        values = _judge(_ranker(recipe, model, fold, progress, clock), held_out, judge, clock)
        means.append(float(np.mean(list(values.values()))))
        per_graph |= values
        after_fold(values)
    inference_s = 1000 * clock.seconds / clock.configs
    value = float(np.mean(means))
    training_s = clock.training_seconds
    result = CrossValidation(metric, value, tuple(means), per_graph, training_s, inference_s)
    write_text(run_dir / REPORT, json.dumps(asdict(result), indent=1, allow_nan=False))
    mark_done(run_dir)
    return result


def _ranker(
    recipe: Recipe, model: str, fold: _Fold, progress: Progress | None, clock: _Clock
) -> Ranker:
    """Train what is judged on a fold: one model, or all that the recipe blends."""
    collection, seed = fold.held_out[0].collection, recipe.seeds[0]

    def job_of(name: str, folder: Path) -> TrainJob:
        begins_from = shared_model(recipe, name, seed, fold.shared, fold.shared_folder)
        return TrainJob(name, recipe, fold.learned, seed, folder, progress, shared=begins_from)

    if model != BLEND:
        return _trained(job_of(model, fold.folder), collection, clock)
    rankers = {}
    for own in judged_models(recipe, model, collection.kind):
        name = f"{own}-seed{seed}"
        job = job_of(own, fold.folder / name)
        train = partial(_trained, job, collection, clock)
        kept = fold.kept_scores
        rankers[name] = ranker_of_kept(job, fold.held_out, kept, train) if kept else train()
    return blended(recipe, collection, rankers)


def _trained(job: TrainJob, collection: Collection, clock: _Clock) -> Ranker:
    """Train a model, unless it is done, and load it."""
    began = time.perf_counter()
    train_model(job, collection, resume=True)
    clock.training_seconds += time.perf_counter() - began
    return load_model(job.run_dir)


def _less(files: Sequence[GraphFile], held_out: Sequence[GraphFile]) -> list[GraphFile]:
    """Leave out the families that are held out."""
    families = set(map(family_of, held_out))
    return [file for file in files if family_of(file) not in families]


def _judge(
    ranker: Ranker,
    files: Sequence[GraphFile],
    judge: Callable[[Graph, NDArray[np.int64]], float],
    clock: _Clock,
) -> dict[str, float]:
    """Return the metric of each graph by name, one graph in memory at a time."""
    values = {}
    for file in files:
        graph = read_graph(file)
        began = time.perf_counter()
        scores = ranker.score(graph)
        clock.seconds += time.perf_counter() - began
        clock.configs += len(scores)
        if not np.isfinite(scores).all():
            row = int(np.argmin(np.isfinite(scores)))
            raise PipelineError(f"{file.path}: config {row} is scored {scores[row]}; not finite")
        value = judge(graph, np.argsort(scores, kind="stable"))
        if math.isnan(value):
            raise PipelineError(f"{file.path}: its runtimes give no order; it cannot be held out")
        values[file.name] = value
    return values


def _judge_layout(graph: Graph, ranking: NDArray[np.int64]) -> float:
    """Return Kendall's tau of a ranking (c,), fastest first."""
    return kendall_tau(np.argsort(ranking), graph.runtime_ns)


def _judge_tile(graph: Graph, ranking: NDArray[np.int64]) -> float:
    """Return the tile score of a ranking (c,), fastest first."""
    assert isinstance(graph, TileGraph)
    return tile_score(ranking, graph.normalized_runtime)


METRICS: dict[str, tuple[str, Callable[[Graph, NDArray[np.int64]], float]]] = {
    "layout": ("kendall_tau", _judge_layout),
    "tile": ("tile_score", _judge_tile),
}
