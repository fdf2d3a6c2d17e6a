"""What a model is told when it is trained, and what it gives back: light to import."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.recipe import Recipe

SHARED_FOLDER = "layout-shared"

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class SharedModel:
    """A model that the layout collections begin from: the train graphs of all, and its folder."""

    files: Sequence[GraphFile]
    run_dir: Path


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder.

    Attributes:
        fabric: this process's place among those that train the model; None if it is the only one.
        shared: what the training begins from; None = random weights.
    """

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path
    fabric: "Fabric | None" = None
    shared: SharedModel | None = None

    @property
    def rank(self) -> int:
        """Return this process's number; the first, 0, is the one that writes."""
        return self.fabric.global_rank if self.fabric else 0

    @property
    def n_ranks(self) -> int:
        """Return how many processes train the model."""
        return self.fabric.world_size if self.fabric else 1


class Ranker(Protocol):
    """A trained model."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of `graph`; (c,) float32, lower = faster."""


def pretrain_steps(recipe: Recipe, model: str) -> int:
    """Return for how many steps the collections' models are trained as one; 0 = each by itself."""
    training = recipe.training_of(model)
    return training.pretrain_steps if training else 0


def shared_model(
    recipe: Recipe, model: str, seed: int, files: Sequence[GraphFile], folder: Path
) -> SharedModel | None:
    """Return what `model` begins from, in its own folder below `folder`; None if from nothing.

    `files` are the train graphs of all layout collections.
    """
    if pretrain_steps(recipe, model) == 0:
        return None
    return SharedModel(files, folder / f"{model}-seed{seed}")


def recipe_of_shared(recipe: Recipe, model: str) -> Recipe:
    """Return the recipe by which the shared model is trained: its steps are the shared ones."""
    config = getattr(recipe, model)
    steps = {"steps": config.training.pretrain_steps, "pretrain_steps": 0}
    training = config.training.model_copy(update=steps)
    return recipe.model_copy(update={model: config.model_copy(update={"training": training})})
