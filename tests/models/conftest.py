"""Inputs of layout networks."""

import pytest

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler, fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs


@pytest.fixture(scope="session")
def scaler(layout_graph: LayoutGraph) -> NodeScaler:
    return fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")


@pytest.fixture
def inputs(layout_graph: LayoutGraph, scaler: NodeScaler) -> LayoutInputs:
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler)
