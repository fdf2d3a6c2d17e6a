"""A tree that a test may change, a store to fill from it, and graphs compared to the bit."""

import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from data.graph_store.prepare import LOCK
from data.graphs.graph import Graph, LayoutGraph
from data.graphs.packing import PackedConfigs
from tests.data.graphs.test_packing import check_same, same_bits
from tests.support.real_data import ROOT


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tree, tmp_path / "data"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


# Packs DATA into STORE with so many workers, and says "begun" just before.
PREPARE = """
import sys
from pathlib import Path
from common.machine import own_peak_mib
from data.graph_store import prepare as preparing
from data.tree import find_graphs
from common.jobs.workers import Workers

if __name__ == "__main__":
    files = find_graphs(Path(sys.argv[1]))
    preparing.BLOCK_BYTES = 0
    print("begun", flush=True)
    workers = Workers(int(sys.argv[3]))
    preparing.prepare(files, Path(sys.argv[2]), workers=workers)
    print(round(1024 * own_peak_mib()))
"""


def begin_prepare(data_dir: Path, store: Path, *, workers: int = 1) -> "subprocess.Popen[str]":
    """Start to pack a tree in a process of its own; return it once it packs.

    It prints the most memory that it took, in KiB.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(data_dir), str(store), str(workers)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


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
