"""A tree that a test may change, and a store to fill from it."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tree, tmp_path / "data"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"
