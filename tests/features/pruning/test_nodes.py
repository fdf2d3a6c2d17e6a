"""Features of pruned nodes against a loop over the nodes that each one stands for."""

import numpy as np
import pytest

from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import minor_to_major
from features.pruning.nodes import PrunedNodes, prune_layout_graph
from features.pruning.rules import PrunedGraph
from tests.features.graphs import random_layout_graph

RULES = ("none", "config", "config-graph", "collapse", "hops-1")


def check(graph: LayoutGraph, pruned: PrunedGraph, nodes: PrunedNodes) -> None:
    assert nodes.node_feat.dtype == np.float32
    assert nodes.opcode.dtype == np.uint8
    assert len(nodes.node_feat) == len(nodes.opcode) == len(nodes.minor_to_major)
    for node in range(len(pruned.kept)):
        members = pruned.group == node
        mean = graph.node_feat[members].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(nodes.node_feat[node], mean, rtol=1e-6)
        opcodes = set(graph.node_opcode[members].tolist())
        assert nodes.opcode[node] == (opcodes.pop() if len(opcodes) == 1 else 0)
        layouts = {tuple(row) for row in minor_to_major(graph.node_feat[members]).tolist()}
        agreed = layouts.pop() if len(layouts) == 1 else (-1,) * 6
        assert tuple(nodes.minor_to_major[node].tolist()) == agreed


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(10))
def test_each_node_says_what_those_it_stands_for_say(rule: str, seed: int) -> None:
    graph = random_layout_graph(seed)
    check(graph, *prune_layout_graph(graph, rule=rule))
