"""A tree that a test may change, a store to fill from it, and graphs compared to the bit."""

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from data.graph_store.prepare import LOCK
from data.graphs.graph import Graph, LayoutGraph
from data.graphs.packing import PackedConfigs
from tests.data.graphs.test_packing import check_same, same_bits


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tree, tmp_path / "data"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def contents(store: Path) -> dict[str, bytes]:
    """Return all files of a store but its lock, hidden ones too."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def check_same_graph(one: Graph, other: Graph) -> None:
    """Check that two graphs are the same to the bit, types included, wherever they come from."""
    assert type(one) is type(other)
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            same_bits(mine, its, field.name)
    if isinstance(one, LayoutGraph):
        assert isinstance(other, LayoutGraph)
        assert isinstance(one.configs, PackedConfigs) and isinstance(other.configs, PackedConfigs)
        check_same(one.configs, other.configs)
