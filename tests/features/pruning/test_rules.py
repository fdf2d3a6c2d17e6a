"""Pruning rules against a breadth-first search over a plain dictionary."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.errors import UsageError
from features.pruning import pruning_rule
from tests.real_data import real_layout_graphs, requires_real_data

# The same examples in every run, however slow the machine.
STEADY = settings(deadline=None, derandomize=True)
Edges = NDArray[np.int64]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Edges, int, NDArray[np.int64]]:
    """Any edges at all: none, self-loops, twice the same, cycles, parts that do not connect."""
    n_nodes = draw(st.integers(1, 14))
    node = st.integers(0, n_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=20))
    config_ids = draw(st.lists(node, min_size=1, unique=True))
    return (
        np.asarray(edges, dtype=np.int64).reshape(-1, 2),
        n_nodes,
        np.asarray(config_ids, dtype=np.int64),
    )


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
    """Check shapes, types, order, edges between kept nodes, and the way back to the whole graph."""
    pruned = pruning_rule(rule)(edges, n_nodes, ids)
    assert pruned.edge_index.shape == (len(pruned.edge_index), 2)
    for array in (pruned.kept, pruned.edge_index, pruned.config_ids):
        assert array.dtype == np.int64
    assert pruned.kept.tolist() == kept
    assert pruned.kept[pruned.config_ids].tolist() == ids.tolist()
    inside = [[u, v] for u, v in edges.tolist() if u in set(kept) and v in set(kept)]
    assert pruned.kept[pruned.edge_index].tolist() == inside


@pytest.mark.parametrize(
    ("rule", "hops"), [("none", None), ("config", 0), ("hops-1", 1), ("hops-3", 3), ("hops-99", 99)]
)
@STEADY
@given(graph=graphs())
def test_rules_keep_what_a_search_reaches(
    rule: str, hops: int | None, graph: tuple[Edges, int, NDArray[np.int64]]
) -> None:
    edges, n_nodes, config_ids = graph
    kept = list(range(n_nodes)) if hops is None else nodes_within(edges, config_ids, hops)
    check(rule, edges, n_nodes, config_ids, kept)


@pytest.mark.parametrize("name", ["", "hops-0", "hops-100", "Config"])
def test_unknown_rules_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pruning_rule(name)
    assert str(caught.value) == (
        f"pruning rule '{name}': no such rule; known: none, config, hops-k (k = 1 to 99)"
    )


@requires_real_data
@pytest.mark.parametrize(
    "nodes",
    [range(5_000), pytest.param(range(5_000, 50_000), marks=pytest.mark.slow)],
    ids=["small", "large"],
)
def test_real_graphs_are_cut_as_the_references_say(nodes: range) -> None:
    for graph in real_layout_graphs():
        if graph.n_nodes in nodes:
            edges, config_ids = graph.edge_index, graph.node_config_ids
            kept = nodes_within(edges, config_ids, 1)
            check("hops-1", edges, graph.n_nodes, config_ids, kept)
