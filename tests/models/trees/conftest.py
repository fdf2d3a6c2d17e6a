"""Train graphs by kind, and a program whose configs are learned."""

from pathlib import Path

import pytest

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile, collection_named, find_graphs


@pytest.fixture(scope="session")
def files(tiny_tree: Path) -> dict[str, list[GraphFile]]:
    train_files = find_graphs(tiny_tree, splits=("train",))
    return {k: [f for f in train_files if f.collection.kind == k] for k in ("layout", "tile")}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> LayoutGraph:
    """A program with 79 distinct configs of 34 columns."""
    folder, collection = tmp_path_factory.mktemp("program"), collection_named("layout:xla:default")
    return read_layout(write_sized(folder, GraphSize(300, 8, 150), collection=collection))
