"""Features of pruned nodes are those of the whole graph's."""

import numpy as np
import pytest

from data.graphs.node_layouts import minor_to_major
from features.pruning.nodes import prune_layout_graph
from tests.features.graphs import random_layout_graph


@pytest.mark.parametrize("rule", ["none", "config", "config-graph", "hops-1"])
def test_each_node_keeps_its_features(rule: str) -> None:
    graph = random_layout_graph(0)
    pruned, nodes = prune_layout_graph(graph, rule=rule)
    np.testing.assert_array_equal(nodes.node_feat, graph.node_feat[pruned.kept])
    np.testing.assert_array_equal(nodes.opcode, graph.node_opcode[pruned.kept])
    layout = minor_to_major(graph.node_feat)[pruned.kept]
    np.testing.assert_array_equal(nodes.minor_to_major, layout)
