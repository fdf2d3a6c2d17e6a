"""The models by name: how each is trained and loaded. One entry per model, no conditions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.errors import PipelineError
from data.graph import Graph
from models.boosting import score_boosting, train_boosting
from models.jobs import Ranker, TrainJob
from models.layout_nets import LAYOUT_NETS, LayoutNet
from models.layout_task import load_layout, train_layout
from models.model_configs import BoostingConfig, TrainingConfig
from models.recipe import Recipe
from models.segment_task import load_segments, train_segments
from models.tile_nets import TILE_NETS, TileNet
from models.tile_task import load_tile, train_tile
from models.train_set import graphs_of


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
class BoostingRanker:
    """A trained boosting model, by its run folder."""

    kind: str
    run_dir: Path
    threads: int

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of `graph`; (c,) float32, lower = faster."""
        return score_boosting(graph, self.run_dir, kind=self.kind, threads=self.threads)


def _boosting_entry(kind: str, config_of: Callable[[Recipe], BoostingConfig]) -> ModelEntry:
    def train(job: TrainJob) -> None:
        train_boosting(
            graphs_of(job.files),
            config_of(job.recipe),
            kind=kind,
            seed=job.seed,
            threads=job.recipe.threads,
            run_dir=job.run_dir,
        )

    def load(run_dir: Path, recipe: Recipe) -> BoostingRanker:
        return BoostingRanker(kind, run_dir, recipe.threads)

    return ModelEntry(kind, train, load)


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
    **{
        name: ModelEntry("tile", train_tile, partial(load_tile, name), partial(_training_of, net))
        for name, net in TILE_NETS.items()
    },
    "tile_boosting": _boosting_entry("tile", lambda recipe: recipe.tile_boosting),
}


def model_entry(name: str) -> ModelEntry:
    """Return the model called `name`.

    Raises:
        PipelineError: there is no such model; the known ones are listed.
    """
    if name not in MODELS:
        raise PipelineError(f"model '{name}': no such model; known: {', '.join(MODELS)}")
    return MODELS[name]
