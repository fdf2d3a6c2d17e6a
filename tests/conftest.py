"""Data that many tests read: one small synthetic tree, written once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.http import RetryPolicy
from data.graph_store.stored_graph import read_layout, read_tile
from data.graphs.graph import LayoutGraph, TileGraph
from data.synthetic.write import PLANS, planned_graphs, synthesize
from data.tree import GraphFile, collection_named, find_graphs
from tests.support.fake_kaggle import FakeKaggle, logged_in_at

# Triton reads this when it is imported. Without a GPU its interpreter runs the kernels.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of a shell's background job
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def store_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep packed graphs out of the project's own store, in child processes too.

    Results of `optimize` do not go to the user's cache folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("common.settings.USER_CACHE", tmp_path_factory.mktemp("cache"))
        patch.setenv("PIPELINE_STORE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(scope="session")
def tiny_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of all five collections with a few small graphs each; read it, never write to it."""
    folder = tmp_path_factory.mktemp("tiny") / "tree"
    synthesize(folder, list(planned_graphs(PLANS["tiny"])))
    return folder


@pytest.fixture(scope="session")
def layout_files(tiny_tree: Path) -> list[GraphFile]:
    collection = collection_named("layout:xla:random")
    return find_graphs(tiny_tree, collections=(collection,), splits=("train",))


@pytest.fixture(scope="session")
def layout_graph(layout_files: list[GraphFile]) -> LayoutGraph:
    return read_layout(layout_files[0])


@pytest.fixture(scope="session")
def tile_graph(tiny_tree: Path) -> TileGraph:
    collection = collection_named("tile:xla")
    return read_tile(find_graphs(tiny_tree, collections=(collection,), splits=("train",))[0])


@pytest.fixture
def fake_kaggle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeKaggle]:
    """A Kaggle server of our own, to which the real client is pointed and logged in."""
    server = FakeKaggle()
    with logged_in_at(server, monkeypatch, tmp_path / "home"):
        yield server


@pytest.fixture
def waits() -> list[float]:
    """The waits, in seconds, that the policy of the test has been asked for."""
    return []


@pytest.fixture
def policy(waits: list[float]) -> RetryPolicy:
    return RetryPolicy(attempts=4, first_wait_s=2.0, sleep=waits.append)
