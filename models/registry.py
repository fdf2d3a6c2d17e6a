"""The models by name: how each is trained and loaded. One entry per model, no conditions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import Graph
from models.config.networks import TrainingConfig
from models.config.rankers import BoostingConfig, LinearConfig
from models.config.recipe import Recipe
from models.layout.networks import LAYOUT_NETS, LayoutNet
from models.layout.task import load_layout, train_layout
from models.segments.task import load_segments, train_segments
from models.tile.networks import TILE_NETS, TileNet
from models.tile.task import load_tile, train_tile
from models.training.jobs import Ranker, TrainJob
from models.trees.boosting import load_boosting, train_boosting
from models.trees.linear import load_linear, train_linear
from models.trees.one_program import load_config_columns, train_config_columns


@dataclass(frozen=True)
class ModelEntry:
    """A model of one kind ("layout" or "tile"): its training and its loading.

    `training_of` finds how the engine trains it in a recipe; None where the engine does not.
    """

    kind: str
    train: Callable[[TrainJob], None]
    load: Callable[[Path, Recipe], Ranker]
    training_of: Callable[[Recipe], TrainingConfig | None] = lambda recipe: None


@dataclass(frozen=True)
class ScoringFunction:
    """A trained model that is a function of the graph."""

    score: Callable[[Graph], NDArray[np.float32]]


def _boosting_entry(kind: str, config_of: Callable[[Recipe], BoostingConfig]) -> ModelEntry:
    def train(job: TrainJob) -> None:
        train_boosting(
            job.files,
            config_of(job.recipe),
            seed=job.seed,
            threads=job.recipe.threads,
            run_dir=job.run_dir,
        )

    def load(run_dir: Path, recipe: Recipe) -> ScoringFunction:
        config, threads = config_of(recipe), recipe.threads
        return ScoringFunction(load_boosting(run_dir, config, kind=kind, threads=threads))

    return ModelEntry(kind, train, load)


def _linear_entry(kind: str, config_of: Callable[[Recipe], LinearConfig]) -> ModelEntry:
    def train(job: TrainJob) -> None:
        train_linear(job.files, config_of(job.recipe), seed=job.seed, run_dir=job.run_dir)

    def load(run_dir: Path, recipe: Recipe) -> ScoringFunction:
        return ScoringFunction(load_linear(run_dir, config_of(recipe), kind=kind))

    return ModelEntry(kind, train, load)


def _train_columns(job: TrainJob) -> None:
    train_config_columns(
        job.files,
        job.recipe.config_columns_boosting,
        seed=job.seed,
        threads=job.recipe.threads,
        run_dir=job.run_dir,
    )


def _load_columns(run_dir: Path, recipe: Recipe) -> ScoringFunction:
    return ScoringFunction(load_config_columns(run_dir, threads=recipe.threads))


def _training_of(net: LayoutNet | TileNet, recipe: Recipe) -> TrainingConfig:
    return net.config_of(recipe).training


MODELS: dict[str, ModelEntry] = {
    **{
        name: ModelEntry(
            "layout", train_layout, partial(load_layout, name), partial(_training_of, net)
        )
        for name, net in LAYOUT_NETS.items()
    },
    "segment_sage": ModelEntry(
        "layout", train_segments, load_segments, lambda recipe: recipe.segment_sage.training
    ),
    "layout_boosting": _boosting_entry("layout", lambda recipe: recipe.layout_boosting),
    "config_columns_boosting": ModelEntry("layout", _train_columns, _load_columns),
    "layout_linear": _linear_entry("layout", lambda recipe: recipe.layout_linear),
    **{
        name: ModelEntry("tile", train_tile, partial(load_tile, name), partial(_training_of, net))
        for name, net in TILE_NETS.items()
    },
    "tile_boosting": _boosting_entry("tile", lambda recipe: recipe.tile_boosting),
    "tile_linear": _linear_entry("tile", lambda recipe: recipe.tile_linear),
}


def model_entry(name: str) -> ModelEntry:
    """Return the model called `name`.

    Raises:
        PipelineError: there is no such model; the known ones are listed.
    """
    if name not in MODELS:
        raise PipelineError(f"model '{name}': no such model; known: {', '.join(MODELS)}")
    return MODELS[name]
