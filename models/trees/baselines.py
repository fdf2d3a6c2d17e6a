"""Rankings without training.

They are the fallback of last resort for data that nothing can be learned from, named in the report
wherever they are used; and the floor that every model's figure is shown beside.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph, LayoutGraph
from features.statistics.configs import STATISTICS, graph_statistics


@dataclass(frozen=True)
class FewestCopies:
    """Layouts: fewest copied bytes along edges plus least padding is fastest."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a layout graph; (c,) float32, lower = faster."""
        assert isinstance(graph, LayoutGraph)
        first, group = distinct_configs(graph)
        statistics = graph_statistics(graph, first)
        copies = statistics[:, STATISTICS["layout"].index("copied_bytes_share")]
        padding = statistics[:, STATISTICS["layout"].index("log_padding")]
        return (copies + padding)[group]


@dataclass(frozen=True)
class FewestCopiedBytes:
    """Layouts: fewest bytes copied along edges is fastest."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a layout graph; (c,) float32, lower = faster."""
        assert isinstance(graph, LayoutGraph)
        first, group = distinct_configs(graph)
        column = STATISTICS["layout"].index("copied_bytes_share")
        return graph_statistics(graph, first)[group, column]


@dataclass(frozen=True)
class FewestSteps:
    """Tiles: fewest steps over the output is fastest; among equals, the largest kernel tile."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a kernel; (c,) float32, lower = faster."""
        statistics = graph_statistics(graph, np.arange(graph.n_configs))
        steps = statistics[:, STATISTICS["tile"].index("log_steps")]
        volume = statistics[:, STATISTICS["tile"].index("log_kernel_bounds_product")]
        return steps - np.float32(1e-3) * volume


BASELINES: dict[str, FewestCopies | FewestSteps] = {
    "layout": FewestCopies(),
    "tile": FewestSteps(),
}
FLOORS: dict[str, FewestCopiedBytes | FewestSteps] = {
    "layout": FewestCopiedBytes(),
    "tile": FewestSteps(),
}
