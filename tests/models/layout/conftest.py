"""A pruned graph that the layout networks' tests read."""

import pytest

from data.graphs.graph import LayoutGraph
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs


@pytest.fixture
def inputs(layout_graph: LayoutGraph) -> LayoutInputs:
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler)
