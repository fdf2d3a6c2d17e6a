"""Features of pruned nodes against a loop over the nodes that each one stands for."""

import numpy as np
import pytest

from data.graphs.graph import LayoutGraph
from data.graphs.node_layouts import minor_to_major
from features.pruning.nodes import PrunedNodes, prune_layout_graph, pruned_nodes
from features.pruning.rules import PrunedGraph
from tests.features.graphs import random_layout_graph, relabelled
from tests.real_data import real_layout_graphs, requires_real_data

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


def test_any_grouping_is_gathered() -> None:
    graph = random_layout_graph(3, n_nodes=30)
    rng = np.random.default_rng(0)
    group = rng.integers(-1, 6, 30)
    kept = np.asarray([np.flatnonzero(group == node)[0] for node in range(6)])
    pruned = PrunedGraph(kept, np.empty((0, 2), dtype=np.int64), np.arange(0), group)
    check(graph, pruned, pruned_nodes(graph, pruned))


def test_configurable_nodes_keep_their_own_features_under_every_rule() -> None:
    graph = random_layout_graph(1, n_nodes=40)
    for rule in RULES:
        pruned, nodes = prune_layout_graph(graph, rule=rule)
        own = graph.node_feat[graph.node_config_ids]
        np.testing.assert_array_equal(nodes.node_feat[pruned.config_ids], own)
        opcode = graph.node_opcode[graph.node_config_ids]
        np.testing.assert_array_equal(nodes.opcode[pruned.config_ids], opcode)
        layout = minor_to_major(own)
        np.testing.assert_array_equal(nodes.minor_to_major[pruned.config_ids], layout)


@pytest.mark.parametrize("seed", range(5))
def test_merged_nodes_do_not_depend_on_the_order_of_nodes(seed: int) -> None:
    graph = random_layout_graph(seed)
    moved, _ = relabelled(graph, seed + 1)
    rows = []
    for each in (graph, moved):
        _, nodes = prune_layout_graph(each, rule="collapse")
        table = np.column_stack([nodes.opcode, nodes.minor_to_major, nodes.node_feat])
        rows.append(table[np.lexsort(table.T[::-1])])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)


@requires_real_data
def test_real_graphs_are_gathered_as_the_loop_says() -> None:
    for graph in real_layout_graphs():
        if graph.n_nodes < 5_000:  # the loop takes a while
            check(graph, *prune_layout_graph(graph, rule="collapse"))
