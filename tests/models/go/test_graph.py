"""The order of nodes, and where decisions stand in it."""

from dataclasses import replace

import numpy as np
import pytest

from common.errors import PipelineError
from models.go.graph import decision_graph, topological_order
from tests.models.go.programs import UNSCALED, described, mixed_tasks, random_arrays


def test_each_node_stands_after_its_operands() -> None:
    edges = np.array([[0, 3], [0, 5], [2, 0], [1, 4]])
    place = np.argsort(topological_order(edges, 6))
    assert sorted(place) == list(range(6))
    assert (place[edges[:, 0]] > place[edges[:, 1]]).all()


def test_numbers_that_are_in_order_stay() -> None:
    arrays = random_arrays(0)
    assert topological_order(arrays["edge_index"], 24).tolist() == list(range(24))
    assert topological_order(np.empty((0, 2), np.int64), 3).tolist() == [0, 1, 2]


def test_a_circle_is_refused() -> None:
    with pytest.raises(PipelineError, match="here: edges run in a circle"):
        topological_order(np.array([[0, 1], [1, 2], [2, 1]]), 3, source="here")


def test_decisions_of_the_whole_program_are_nodes_at_the_end() -> None:
    graph = mixed_tasks(random_arrays(0))
    first, second = graph.tasks
    assert (first.genes, second.genes, graph.n_genes) == (slice(0, 4), slice(4, 7), 7)
    assert first.nodes.tolist() == [5, 2, 9, 11]
    assert second.nodes.tolist() == [24, 7, 25]
    assert second.n_options.tolist() == [4, 2, 1]
    assert graph.opcode[24:].tolist() == [256, 257]
    assert not graph.node_feat[24:].any()


def test_a_description_that_says_no_node_is_refused() -> None:
    known = described(random_arrays(0), [3], [2], {"fusion": 1})
    with pytest.raises(PipelineError, match="here: its genes say no node"):
        decision_graph("here", replace(known, nodes=None), UNSCALED)
