"""Pruning rules against a breadth-first search over a plain dictionary."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.errors import UsageError
from data.read import read_layout
from features.pruning import PrunedGraph, prune, pruning_rule
from tests.real_data import real_file, requires_real_data

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


def check(
    pruned: PrunedGraph, edges: Edges, config_ids: NDArray[np.int64], kept: list[int]
) -> None:
    assert pruned.kept.tolist() == kept
    inside = [[u, v] for u, v in edges.tolist() if u in set(kept) and v in set(kept)]
    assert pruned.kept[pruned.edge_index].tolist() == inside
    assert pruned.kept[pruned.config_ids].tolist() == config_ids.tolist()
    assert pruned.edge_index.shape == (len(inside), 2)
    assert pruned.kept.dtype == pruned.edge_index.dtype == pruned.config_ids.dtype == np.int64


@STEADY
@given(graphs(), st.integers(1, 5))
def test_hops_keep_what_a_search_reaches(
    graph: tuple[Edges, int, NDArray[np.int64]], hops: int
) -> None:
    edges, n_nodes, config_ids = graph
    pruned = prune(f"hops-{hops}", edges, n_nodes, config_ids)
    check(pruned, edges, config_ids, nodes_within(edges, config_ids, hops))


@STEADY
@given(graphs())
def test_config_keeps_the_configurable_nodes_alone(
    graph: tuple[Edges, int, NDArray[np.int64]],
) -> None:
    edges, n_nodes, config_ids = graph
    check(prune("config", edges, n_nodes, config_ids), edges, config_ids, sorted(config_ids))


@STEADY
@given(graphs())
def test_none_keeps_everything(graph: tuple[Edges, int, NDArray[np.int64]]) -> None:
    edges, n_nodes, config_ids = graph
    check(prune("none", edges, n_nodes, config_ids), edges, config_ids, list(range(n_nodes)))


@STEADY
@given(graphs())
def test_many_hops_keep_the_whole_component_and_never_more(
    graph: tuple[Edges, int, NDArray[np.int64]],
) -> None:
    edges, n_nodes, config_ids = graph
    pruned = prune("hops-99", edges, n_nodes, config_ids)
    check(pruned, edges, config_ids, nodes_within(edges, config_ids, n_nodes))


def test_pruning_leaves_its_inputs_alone() -> None:
    edges = np.asarray([[1, 0], [2, 1], [3, 2]])
    config_ids = np.asarray([3, 0])
    before = edges.copy(), config_ids.copy()
    prune("hops-1", edges, 4, config_ids)
    np.testing.assert_array_equal(edges, before[0])
    np.testing.assert_array_equal(config_ids, before[1])


@pytest.mark.parametrize(
    "name", ["", "hops", "hops-", "hops-0", "hops-01", "hops-100", "hops--1", "hops-1.5", "Config"]
)
def test_unknown_rules_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        pruning_rule(name)
    line = str(caught.value)
    assert line.startswith(f"pruning rule '{name}': no such rule; known: none, config, hops-k")


@requires_real_data
@pytest.mark.parametrize(
    ("submission_id", "counts"),
    [
        (
            "layout:xla:default:cd708819d3f5103afd6460b15e74eaf3",
            {"none": 490, "config": 38, "hops-1": 118, "hops-3": 297},
        ),
        (
            "layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba",
            {"none": 21918, "config": 848, "hops-1": 2850, "hops-3": 9455},
        ),
    ],
)
def test_real_graphs_are_cut_to_known_sizes(submission_id: str, counts: dict[str, int]) -> None:
    graph = read_layout(real_file(submission_id))
    for rule, n_kept in counts.items():
        pruned = prune(rule, graph.edge_index, graph.n_nodes, graph.node_config_ids)
        assert len(pruned.kept) == n_kept
        np.testing.assert_array_equal(pruned.kept[pruned.config_ids], graph.node_config_ids)
    within = nodes_within(graph.edge_index, graph.node_config_ids, 2)
    pruned = prune("hops-2", graph.edge_index, graph.n_nodes, graph.node_config_ids)
    assert pruned.kept.tolist() == within
