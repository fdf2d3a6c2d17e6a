"""The models by name: how each is trained and loaded.

A network's module is imported when the network is asked for, with all that it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import Graph
from models.config.own_models import imported
from models.config.rankers import BoostingConfig, LinearConfig
from models.config.recipe import Recipe
from models.training.jobs import Ranker, TrainJob
from models.trees.boosting import load_boosting, train_boosting
from models.trees.linear import load_linear, train_linear
from models.trees.one_program import load_config_columns, train_config_columns


@dataclass(frozen=True)
class ModelEntry:
    """A model of one kind ("layout" or "tile"): its training and its loading."""

    kind: str
    train: Callable[[TrainJob], None]
    load: Callable[[Path, Recipe], Ranker]


@dataclass(frozen=True)
class ScoringFunction:
    """A trained model that is a function of the graph."""

    score: Callable[[Graph], NDArray[np.float32]]


def _network(kind: str, name: str, place: str) -> ModelEntry:
    """Return the model whose class stands at `place`; models/{kind}/task.py trains and loads it."""

    def train(job: TrainJob) -> None:
        import_module(f"models.{kind}.task").train(job, imported(place))

    def load(run_dir: Path, recipe: Recipe) -> Ranker:
        task = import_module(f"models.{kind}.task")
        ranker: Ranker = task.load(name, run_dir, recipe, imported(place))
        return ranker

    return ModelEntry(kind, train, load)


def _segments() -> ModelEntry:
    def train(job: TrainJob) -> None:
        import_module("models.segments.task").train(job)

    def load(run_dir: Path, recipe: Recipe) -> Ranker:
        ranker: Ranker = import_module("models.segments.task").load(run_dir, recipe)
        return ranker

    return ModelEntry("layout", train, load)


def _boosting(kind: str, config_of: Callable[[Recipe], BoostingConfig]) -> ModelEntry:
    def train(job: TrainJob) -> None:
        config, threads = config_of(job.recipe), job.recipe.threads
        train_boosting(job.files, config, seed=job.seed, threads=threads, run_dir=job.run_dir)

    def load(run_dir: Path, recipe: Recipe) -> ScoringFunction:
        config, threads = config_of(recipe), recipe.threads
        return ScoringFunction(load_boosting(run_dir, config, kind=kind, threads=threads))

    return ModelEntry(kind, train, load)


def _linear(kind: str, config_of: Callable[[Recipe], LinearConfig]) -> ModelEntry:
    def train(job: TrainJob) -> None:
        train_linear(job.files, config_of(job.recipe), seed=job.seed, run_dir=job.run_dir)

    def load(run_dir: Path, recipe: Recipe) -> ScoringFunction:
        return ScoringFunction(load_linear(run_dir, config_of(recipe), kind=kind))

    return ModelEntry(kind, train, load)


def _config_columns() -> ModelEntry:
    def train(job: TrainJob) -> None:
        config, threads = job.recipe.config_columns_boosting, job.recipe.threads
        train_config_columns(job.files, config, seed=job.seed, threads=threads, run_dir=job.run_dir)

    def load(run_dir: Path, recipe: Recipe) -> ScoringFunction:
        return ScoringFunction(load_config_columns(run_dir, threads=recipe.threads))

    return ModelEntry("layout", train, load)


NETWORKS = {
    "cross_config_sage": ("layout", "models.layout.cross_config_sage:CrossConfigSage"),
    "global_attention_sage": ("layout", "models.layout.global_attention_sage:GlobalAttentionSage"),
    "tgraph": ("layout", "models.layout.tgraph:Tgraph"),
    "baseline_gcn": ("layout", "models.layout.gcn:BaselineGcn"),
    "late_fusion_sage": ("tile", "models.tile.late_fusion_sage:LateFusionSage"),
    "early_fusion_sage": ("tile", "models.tile.early_fusion_sage:EarlyFusionSage"),
}
MODELS: dict[str, ModelEntry] = {
    **{name: _network(kind, name, place) for name, (kind, place) in NETWORKS.items()},
    "segment_sage": _segments(),
    "layout_boosting": _boosting("layout", lambda recipe: recipe.layout_boosting),
    "config_columns_boosting": _config_columns(),
    "layout_linear": _linear("layout", lambda recipe: recipe.layout_linear),
    "tile_boosting": _boosting("tile", lambda recipe: recipe.tile_boosting),
    "tile_linear": _linear("tile", lambda recipe: recipe.tile_linear),
}


def model_entry(recipe: Recipe, name: str) -> ModelEntry:
    """Return the model called `name`, a built-in one or one of the recipe's own.

    Raises:
        PipelineError: there is no such model; the known ones are listed.
    """
    own = recipe.own_models
    if name in own:
        return _network("layout" if own[name] in recipe.layout.models else "tile", name, own[name])
    if name not in MODELS:
        known = ", ".join((*MODELS, *own))
        raise PipelineError(f"model '{name}': no such model; known: {known}")
    return MODELS[name]
