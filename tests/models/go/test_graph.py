"""Where decisions stand among the nodes."""

from dataclasses import replace

import pytest

from common.errors import PipelineError
from models.go.graph import decision_graph
from tests.models.go.programs import UNSCALED, described, mixed_tasks, random_arrays


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
