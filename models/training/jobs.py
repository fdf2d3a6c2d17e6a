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


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder."""

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path


class Ranker(Protocol):
    """A trained model."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of `graph`; (c,) float32, lower = faster."""
