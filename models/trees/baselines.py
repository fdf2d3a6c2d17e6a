"""Rankings without training.

They are the fallback of last resort for data that nothing can be learned from, named in the report
wherever they are used; and the floor that every model's figure is shown beside.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph
from features.statistics.configs import STATISTICS, statistics_of


@dataclass(frozen=True)
class Baseline:
    """Scores a config by a weighted sum of its plain statistics; `weights` are by their names."""

    weights: dict[str, float]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        first, group = distinct_configs(graph)
        statistics = statistics_of(graph, "plain")(first)
        scores = np.zeros(len(first), np.float32)
        for name, weight in self.weights.items():
            column = STATISTICS[graph.file.collection.kind].index(name)
            scores += np.float32(weight) * statistics[:, column]
        return scores[group]


# Fewest steps over the output; among equals, the largest kernel tile.
TILE = Baseline({"log_steps": 1.0, "log_kernel_bounds_product": -1e-3})
BASELINES = {"layout": Baseline({"copied_bytes_share": 1.0, "log_padding": 1.0}), "tile": TILE}
FLOORS = {"layout": Baseline({"copied_bytes_share": 1.0}), "tile": TILE}
