"""A pruned graph that the layout networks' tests read."""

import pytest

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.layout.inputs import LayoutInputs, layout_inputs


@pytest.fixture
def inputs(layout_graph: LayoutGraph, scaler: NodeScaler) -> LayoutInputs:
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler)
