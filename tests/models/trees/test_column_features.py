"""The features of configs against plain loops."""

import numpy as np

from data.graphs.graph import distinct_configs
from models.trees.column_features import column_features
from tests.features.graphs import random_layout_graph


def test_features_are_one_hot_layouts_of_tensors() -> None:
    for seed in range(20):
        graph = random_layout_graph(seed)
        rows = np.arange(graph.n_configs)
        # The other rows have layouts that are not in these two rows.
        few = column_features(graph, rows[:2])
        features = column_features(graph, rows)
        table = features.table(graph, rows)
        values = graph.configs.rows(rows).reshape(len(rows), -1, 3, 6).tolist()
        for one in (few, features):
            want = [
                [float(config[node][tensor] == layout) for config in values]
                for node, tensor, layout in zip(one.node, one.tensor, one.layout, strict=True)
            ]
            found = one.table(graph, rows)
            np.testing.assert_array_equal(found.T, np.asarray(want).reshape(-1, len(rows)))
        for one, learned in ((few, rows[:2]), (features, rows)):
            assert (np.ptp(one.table(graph, learned), axis=0) == 1).all()
        assert len(set(features.names())) == len(features.names())
        # Distinct configs have distinct features, and no feature is a duplicate.
        first, _ = distinct_configs(graph)
        assert len(np.unique(table[first], axis=0)) == len(first)
        columns = {tuple(column) for column in table.T.tolist()}
        assert len(columns) == table.shape[1]
        assert not columns & {tuple(1 - value for value in column) for column in columns}
