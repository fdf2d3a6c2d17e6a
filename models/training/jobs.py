"""What a model is told when it is trained, and what it gives back: light to import."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Called with what is going on, how many steps are done, and how many there are. Where nothing is
# done, a stage begins.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SharedModel:
    """A model that the layout collections begin from: on which graphs, into which run folder.

    Attributes:
        files: train graphs of all of them.
    """

    files: Sequence[GraphFile]
    run_dir: Path


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder.

    Attributes:
        deadline: of time.monotonic(), when to stop at a checkpoint; None = never.
        fabric: this process's place among those that train the model; None if it is the only one.
        shared: what the training begins from; None = random weights.
    """

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path
    progress: Progress | None = None
    deadline: float | None = None
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
