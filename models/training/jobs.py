"""What a model is told when it is trained, and what it gives back: light to import."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.recipe import Recipe

SHARED_FOLDER = "layout-shared"


@dataclass(frozen=True)
class SharedModel:
    """A model that the layout collections begin from: the train graphs of all, and its folder."""

    files: Sequence[GraphFile]
    run_dir: Path


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder."""

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path
    shared: SharedModel | None = None  # what the training begins from; None = random weights


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
