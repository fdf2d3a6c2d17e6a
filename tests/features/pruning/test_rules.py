"""Pruning rules against a breadth-first search over a plain dictionary."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.errors import UsageError
from features.pruning.rules import PrunedGraph, prune, pruning_rule
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


def check_mapping(pruned: PrunedGraph, n_nodes: int, config_ids: NDArray[np.int64]) -> None:
    """What holds for every rule: shapes, types, order, and the way back to the whole graph."""
    assert pruned.group.shape == (n_nodes,)
    assert pruned.edge_index.shape == (len(pruned.edge_index), 2)
    for array in (pruned.kept, pruned.edge_index, pruned.config_ids, pruned.group):
        assert array.dtype == np.int64
    assert pruned.kept.tolist() == sorted(pruned.kept.tolist())
    assert pruned.kept[pruned.config_ids].tolist() == config_ids.tolist()
    members = defaultdict(list)
    for node, place in enumerate(pruned.group.tolist()):
        members[place].append(node)
    dropped = members.pop(-1, [])
    assert len(dropped) + sum(len(nodes) for nodes in members.values()) == n_nodes
    assert [members[place][0] for place in range(len(members))] == pruned.kept.tolist()
    alone = [members[place] for place in pruned.config_ids.tolist()]
    assert alone == [[node] for node in config_ids.tolist()]


def check(
    pruned: PrunedGraph, edges: Edges, n_nodes: int, config_ids: NDArray[np.int64], kept: list[int]
) -> None:
    """What holds for rules that keep nodes as they are, and the edges between them."""
    check_mapping(pruned, n_nodes, config_ids)
    assert pruned.kept.tolist() == kept
    assert np.flatnonzero(pruned.group >= 0).tolist() == kept
    inside = [[u, v] for u, v in edges.tolist() if u in set(kept) and v in set(kept)]
    assert pruned.kept[pruned.edge_index].tolist() == inside


def configurable_reads(edges: Edges, config_ids: NDArray[np.int64]) -> set[tuple[int, int]]:
    """Search from each configurable node towards what it reads, stopping at configurable ones."""
    producers = defaultdict(set)
    for consumer, producer in edges.tolist():
        producers[consumer].add(producer)
    ends = set(config_ids.tolist())
    found = set()
    for start in ends:
        waiting, seen = list(producers[start]), set(producers[start])
        while waiting:
            node = waiting.pop()
            if node in ends:
                found.add((start, node))
                continue
            waiting.extend(producers[node] - seen)
            seen |= producers[node]
    return {(consumer, producer) for consumer, producer in found if consumer != producer}


def check_config_graph(edges: Edges, n_nodes: int, config_ids: NDArray[np.int64]) -> None:
    pruned = prune("config-graph", edges, n_nodes, config_ids)
    check_mapping(pruned, n_nodes, config_ids)
    assert pruned.kept.tolist() == sorted(config_ids.tolist())
    assert (pruned.group >= 0).sum() == len(config_ids)
    want = sorted(configurable_reads(edges, config_ids))
    assert [tuple(edge) for edge in pruned.kept[pruned.edge_index].tolist()] == want


def merged_parts(edges: Edges, n_nodes: int, config_ids: NDArray[np.int64]) -> list[set[int]]:
    """Search from each node that is not configurable through others of that sort."""
    neighbours = defaultdict(set)
    for one, other in edges.tolist():
        neighbours[one].add(other)
        neighbours[other].add(one)
    left = set(range(n_nodes)) - set(config_ids.tolist())
    parts = []
    while left:
        waiting = [min(left)]
        part = set(waiting)
        while waiting:
            found = {node for node in neighbours[waiting.pop()] if node in left} - part
            part |= found
            waiting.extend(found)
        parts.append(part)
        left -= part
    return parts


def check_collapse(edges: Edges, n_nodes: int, config_ids: NDArray[np.int64]) -> None:
    pruned = prune("collapse", edges, n_nodes, config_ids)
    check_mapping(pruned, n_nodes, config_ids)
    parts = merged_parts(edges, n_nodes, config_ids)
    first_of = {node: min(part) for part in parts for node in part}
    first_of |= {node: node for node in config_ids.tolist()}
    assert pruned.kept[pruned.group].tolist() == [first_of[node] for node in range(n_nodes)]
    assert len(pruned.kept) == len(parts) + len(config_ids)
    ends = set(config_ids.tolist())
    want = {(first_of[u], first_of[v]) for u, v in edges.tolist() if u in ends or v in ends}
    assert [tuple(edge) for edge in pruned.kept[pruned.edge_index].tolist()] == sorted(want)


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
    check(prune(rule, edges, n_nodes, config_ids), edges, n_nodes, config_ids, kept)


@STEADY
@given(graphs())
def test_config_graph_follows_paths_and_collapse_merges_parts(
    graph: tuple[Edges, int, NDArray[np.int64]],
) -> None:
    check_config_graph(*graph)
    check_collapse(*graph)


@pytest.mark.parametrize(
    "name",
    ["", "hops-0", "hops-100", "Collapse"],
)
def test_unknown_rules_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pruning_rule(name)
    line = str(caught.value)
    assert line == (
        f"pruning rule '{name}': no such rule; known: none, config, config-graph, collapse, "
        "hops-k (k = 1, 2, …)"
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
            check_config_graph(graph.edge_index, graph.n_nodes, graph.node_config_ids)
            check_collapse(graph.edge_index, graph.n_nodes, graph.node_config_ids)
