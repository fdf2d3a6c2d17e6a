"""The features that distinguish the configs of a program: one-hot layouts of tensors.

Each layout of each tensor of a configurable node is a feature. Tied nodes and equivalent features
count once. The features of a program mean the same in its siblings, because their configurable
nodes are in the same order. Layouts by tensor rank unseen configs better than whole vectors,
because different vectors share layouts of tensors.

Shapes: r rows of configs, f features.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from common.settings import FrozenConfig
from data.graphs.graph import Graph, LayoutGraph
from data.graphs.packing import N_TENSORS, VALUES_PER_TENSOR
from features.statistics.configs import (
    RowStatistics,
    StatisticsSet,
    statistics_names,
    statistics_of,
)
from features.statistics.layout import TENSORS


class ColumnFeatures(FrozenConfig):
    """Features by node (position in config order), tensor (0..2) and layout (6 values)."""

    node: list[int]
    tensor: list[int]
    layout: list[list[int]]

    def names(self, statistics: StatisticsSet | None = None) -> list[str]:
        """Return the names of the columns of `rows_of`."""
        layouts = [
            f"node_{node}_{TENSORS[tensor]}_{'_'.join(str(d) for d in layout if d >= 0) or 'open'}"
            for node, tensor, layout in zip(self.node, self.tensor, self.layout, strict=True)
        ]
        return [*layouts, *(statistics_names("layout", statistics) if statistics else ())]

    def rows_of(self, graph: Graph, statistics: StatisticsSet | None = None) -> RowStatistics:
        """Return the function that computes the rows of configs, with statistics at their end."""
        assert isinstance(graph, LayoutGraph)
        columns = partial(self.table, graph)
        if statistics is None:
            return columns
        further = statistics_of(graph, statistics)
        return lambda rows: np.concatenate([columns(rows), further(rows)], axis=1)

    def table(self, graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Compute the features of some configs, (r, f) float32 of 0 and 1."""
        layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
        layout = np.asarray(self.layout, dtype=np.int8).reshape(-1, VALUES_PER_TENSOR)  # (f, 6)
        # (u, f): whether a vector of the graph sets a feature
        is_set = (layouts[:, self.tensor] == layout).all(axis=2).astype(np.float32)
        ids = graph.configs.vector_ids(rows)[:, self.node]  # (r, f)
        return is_set[ids, np.arange(len(self.node))]


def column_features(graph: LayoutGraph, rows: NDArray[np.int64]) -> ColumnFeatures:
    """Find the features that distinguish some configs, without equivalent ones."""
    node: list[int] = []
    tensor: list[int] = []
    layout: list[list[int]] = []
    layouts = graph.configs.vectors.reshape(-1, N_TENSORS, VALUES_PER_TENSOR)
    first_of_column = np.unique(graph.configs.codebooks.column_of, return_index=True)[1]
    ids = graph.configs.vector_ids(rows)
    known_splits: set[bytes] = set()
    for place in first_of_column.tolist():
        for number in range(N_TENSORS):
            of_tensor = layouts[:, number][ids[:, place]]
            distinct, index = np.unique(of_tensor, axis=0, return_inverse=True)
            for value, values in enumerate(distinct.tolist()):
                feature = index.reshape(-1) == value
                # A feature and its complement split configs in the same way.
                splits = {np.packbits(feature).tobytes(), np.packbits(~feature).tobytes()}
                if not feature.all() and not splits & known_splits:
                    known_splits |= splits
                    node.append(place)
                    tensor.append(number)
                    layout.append(values)
    return ColumnFeatures(node=node, tensor=tensor, layout=layout)
