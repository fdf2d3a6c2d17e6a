"""Pruning rules against a breadth-first search."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import UsageError
from features import pruning
from features.padding import minor_to_major
from features.pruning import prune_layout_graph, pruning_rule
from tests.features.graphs import random_layout_graph, random_nodes

Edges = NDArray[np.int64]


def nodes_within(edges: Edges, config_ids: NDArray[np.int64], hops: int) -> list[int]:
    neighbours = defaultdict(set)
    for consumer, producer in edges.tolist():
        neighbours[consumer].add(producer)
        neighbours[producer].add(consumer)
    distance = dict.fromkeys(config_ids.tolist(), 0)
    waiting = list(distance)
    while waiting:
        node = waiting.pop(0)
        for other in [other for other in neighbours[node] if other not in distance]:
            distance[other] = distance[node] + 1
            waiting.append(other)
    return sorted(node for node, far in distance.items() if far <= hops)


def check(rule: str, edges: Edges, n_nodes: int, ids: NDArray[np.int64], kept: list[int]) -> None:
    """Check types, order, edges between kept nodes, nodes, and the way back to the whole graph."""
    graph = replace(
        random_layout_graph(0),
        node_feat=random_nodes(np.random.default_rng(0), n_nodes),
        node_opcode=np.arange(n_nodes, dtype=np.uint8),
        edge_index=edges,
        node_config_ids=ids,
    )
    pruned = prune_layout_graph(graph, rule=rule)
    for array in (pruned.kept, pruned.edge_index, pruned.config_ids):
        assert array.dtype == np.int64
    assert pruned.kept.tolist() == pruned.opcode.tolist() == kept
    assert pruned.kept[pruned.config_ids].tolist() == ids.tolist()
    inside = [[u, v] for u, v in edges.tolist() if u in set(kept) and v in set(kept)]
    assert pruned.kept[pruned.edge_index].tolist() == inside
    np.testing.assert_array_equal(pruned.node_feat, graph.node_feat[kept])
    np.testing.assert_array_equal(pruned.minor_to_major, minor_to_major(graph.node_feat)[kept])


# Slow and simple versions of each rule. They return the kept nodes.
REFERENCES = {
    "none": lambda edges, n_nodes, config_ids: list(range(n_nodes)),
    "config": lambda edges, n_nodes, config_ids: sorted(config_ids.tolist()),
    **{
        f"hops-{hops}": lambda edges, n_nodes, config_ids, hops=hops: nodes_within(
            edges, config_ids, hops
        )
        for hops in (1, 3, 99)
    },
}


@pytest.mark.parametrize("rule", sorted({*pruning.RULES, *REFERENCES}))
def test_rules_keep_what_a_search_reaches(rule: str) -> None:
    """Any edges at all: none, self-loops, twice the same, cycles, parts that do not connect."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n_nodes, n_edges = int(rng.integers(1, 15)), int(rng.integers(21)) if seed else 0
        edges = rng.integers(n_nodes, size=(n_edges, 2))
        config_ids = rng.permutation(n_nodes)[: rng.integers(1, 4)]
        check(rule, edges, n_nodes, config_ids, REFERENCES[rule](edges, n_nodes, config_ids))


@pytest.mark.parametrize("name", ["", "hops-0", "hops-100", "Config"])
def test_unknown_rules_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pruning_rule(name)
    known = ", ".join([*pruning.RULES, "hops-k (k = 1 to 99)"])
    assert str(caught.value) == f"pruning rule '{name}': no such rule; known: {known}"
    assert {"none", "config"} <= pruning.RULES.keys()


def test_kept_nodes_of_the_largest_graph_are_known_for_every_rule() -> None:
    assert {*pruning.RULES} - {"none"} <= pruning.KEPT_PER_CONFIGURABLE.keys()
    kept = [pruning.kept_nodes(rule, 43_615) for rule in ("hops-1", "hops-2", "hops-9")]
    assert kept == pytest.approx([3.6 * 3_143, 7 * 3_143, 43_615])
