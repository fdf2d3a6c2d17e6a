"""What a model is told when it is trained, and what it gives back: light to import."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from data.graph import Graph
from data.tree import GraphFile
from models.recipe import Recipe

# Called with what is going on, how many steps are done, and how many there are.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder."""

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path
    progress: Progress | None = None


class Ranker(Protocol):
    """A trained model."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of `graph`; (c,) float32, lower = faster."""
