"""How well a recipe's model ranks train graphs that it has not learned from."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.atomic import write_text
from data.errors import PipelineError
from data.fingerprint import fingerprint
from data.graph import Graph, TileGraph
from data.read import read_graph
from data.tree import GraphFile
from models.folds import family_of
from models.jobs import Progress, Ranker, TrainJob
from models.metrics import kendall_tau, tile_score
from models.recipe import Recipe
from models.run_folder import begin, mark_done
from models.shared_training import SHARED_FOLDER, shared_model, shared_steps
from models.train import load_model, train_model

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
    """How long it took to score how many configs, so far."""

    seconds: float = 0.0
    configs: int = 0


def cross_validate(
    recipe: Recipe,
    model: str,
    folds: Sequence[Sequence[GraphFile]],
    run_dir: Path,
    *,
    shared: Sequence[GraphFile] = (),
    progress: Progress | None = None,
    after_fold: Callable[[Mapping[str, float]], None] = lambda values: None,
) -> CrossValidation:
    """Train `model` once per fold on the other folds' graphs, and judge it on the fold's.

    Goes on with what a killed call has left in `run_dir`, which ends up holding config.toml, a
    run folder per fold, report.json and DONE. The training's seed is the recipe's first.

    Args:
        recipe: of all its models only `model` is trained.
        folds: labelled graphs of one collection, each family in one fold.
        shared: train graphs of all layout collections, for a recipe whose models begin from a
            shared one. That of a fold learns from no graph of the fold's families, whatever its
            collection.
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
    if shared_steps(recipe, model):
        config["shared_data"] = fingerprint(shared)
    begin(run_dir, config, resume=True)
    metric, judge = METRICS[collection.kind]
    per_graph: dict[str, float] = {}
    means = []
    training_s, clock = 0.0, _Clock()
    for number, held_out in enumerate(folds):
        learned = [file for fold in folds if fold is not held_out for file in fold]
        folder = run_dir / f"fold-{number}"
        seed, below = recipe.seeds[0], run_dir / SHARED_FOLDER / f"fold-{number}"
        begins_from = shared_model(recipe, model, seed, _less(shared, held_out), below)
        job = TrainJob(model, recipe, learned, seed, folder, progress, shared=begins_from)
        began = time.perf_counter()
        train_model(job, collection, resume=True)
        training_s += time.perf_counter() - began
        values = _judge(load_model(folder), held_out, judge, clock)
        means.append(float(np.mean(list(values.values()))))
        per_graph |= values
        after_fold(values)
    inference_s = 1000 * clock.seconds / clock.configs
    value = float(np.mean(means))
    result = CrossValidation(metric, value, tuple(means), per_graph, training_s, inference_s)
    write_text(run_dir / REPORT, json.dumps(asdict(result), indent=1, allow_nan=False))
    mark_done(run_dir)
    return result


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
