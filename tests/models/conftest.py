"""Inputs of layout networks."""

from pathlib import Path

import pytest

from data.graphs.graph import LayoutGraph
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import NodeScaler, fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs


@pytest.fixture(scope="session")
def layout_files(tiny_tree: Path) -> list[GraphFile]:
    collection = collection_named("layout:xla:random")
    return find_graphs(tiny_tree, collections=(collection,), splits=("train",))


@pytest.fixture(scope="session")
def scaler(layout_graph: LayoutGraph) -> NodeScaler:
    return fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")


@pytest.fixture
def inputs(layout_graph: LayoutGraph, scaler: NodeScaler) -> LayoutInputs:
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler)
