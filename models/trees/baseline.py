"""The untrained baseline, and its use as a member of a tile blend.

It reads no runtimes, so its scores do not depend on the hardware of the train split.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph, distinct_configs
from features.statistics.configs import STATISTICS, statistics_of
from models.config.recipe import Recipe
from models.registry import TrainJob


@dataclass(frozen=True)
class Baseline:
    """A ranking without training: a weighted sum of plain statistics, with `weights` by name.

    It is the fallback for data without an order, and the report names it then. Every model's score
    is shown next to it.
    """

    weights: dict[str, float]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        first, group = distinct_configs(graph)
        names = STATISTICS[graph.file.collection.kind]
        columns = statistics_of(graph, "plain")(first)
        scores = np.zeros(len(first), np.float32)
        for name, weight in self.weights.items():
            scores += np.float32(weight) * columns[:, names.index(name)]
        return scores[group]


# Fewest steps over the output; among equals, the largest kernel tile.
TILE = Baseline({"log_steps": 1.0, "log_kernel_bounds_product": -1e-3})
BASELINES = {"layout": Baseline({"copied_bytes_share": 1.0}), "tile": TILE}


def train_baseline(job: TrainJob) -> None:
    """Write nothing, because the baseline has nothing to learn."""


def load_baseline(name: str, run_dir: Path, recipe: Recipe) -> Baseline:
    return BASELINES["tile"]
