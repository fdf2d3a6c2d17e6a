"""Fixtures of all drills: a tree of two collections, and an undisturbed run on it."""

import shutil
from pathlib import Path

import pytest

from tests.drills.processes import Scene, finish

PARTS = ("tile/xla", "layout/xla/random")


@pytest.fixture(scope="session")
def drill_tree(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of one layout collection and the tiles; read it, never write to it."""
    folder = tmp_path_factory.mktemp("drill") / "tree"
    for part in PARTS:
        shutil.copytree(tiny_tree / "npz" / part, folder / "npz" / part)
    return folder


@pytest.fixture(scope="session")
def calm(drill_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A finished run that nothing disturbed; read it, never write to it."""
    scene = Scene.at(tmp_path_factory.mktemp("calm"), drill_tree)
    finish(scene)
    return scene
