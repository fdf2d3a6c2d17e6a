"""The public dataset's volume: sizes as published, and files that depend on nothing else made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from data.official.published import LAYOUT_CONFIGS, PartSize, official_names, official_sizes
from data.synthetic.plans import MOST_OF_TILES, PlannedGraph, published_graphs
from data.synthetic.write import missing_graphs, write_graphs
from data.tree import GraphFile, collection_named, find_graphs
from tests.command_line import call
from tests.real_data import ROOT


def made(out: Path, graphs: list[PlannedGraph], seed: int = 0) -> list[GraphFile]:
    write_graphs(out, seed, missing_graphs(out, graphs, seed=seed))
    return [graph.file(out) for graph in graphs]


VALID_TILES = ("--collections", "tile:xla", "--splits", "valid", "--share", 0.01)


def small(collection: str = "layout:xla:random", split: str = "train") -> list[PlannedGraph]:
    graphs = published_graphs([collection_named(collection)], [split])
    return sorted(graphs, key=lambda graph: (graph.size.n_configs, graph.size.n_nodes))[:2]


@pytest.mark.parametrize(
    "part", official_sizes(), ids=lambda part: f"{part.collection}/{part.split}"
)
def test_each_part_has_the_names_and_sizes_that_were_published(part: PartSize) -> None:
    graphs = published_graphs([collection_named(part.collection)], [part.split])
    names = {graph.name for graph in graphs}
    assert len(graphs) == len(names) == part.graphs
    assert names <= official_names()[f"{part.collection}/{part.split}"]
    nodes, configs = (
        [getattr(graph.size, key) for graph in graphs] for key in ("n_nodes", "n_configs")
    )
    assert np.mean(nodes) == part.nodes
    if part.collection == "tile:xla":  # only means are known of it
        assert max(nodes) == MOST_OF_TILES * part.nodes and np.mean(configs) == part.configs
        assert max(configs) == MOST_OF_TILES * part.configs and min(configs) >= 2
        return
    assert max(nodes) == part.most_nodes
    if part.split == "test":
        assert set(configs) <= {LAYOUT_CONFIGS, LAYOUT_CONFIGS + 1}
        return
    assert np.mean(configs) == part.configs
    assert max(configs) == min(part.most_configs, part.configs * part.graphs // 2)
    assert max(graph.size.n_configurable for graph in graphs) < 3_144


def test_a_share_holds_graphs_of_every_part_small_and_large() -> None:
    few = published_graphs(share=0.02)
    assert {(g.collection, g.split) for g in few} == {
        (g.collection, g.split) for g in published_graphs()
    }
    kernels = [g.size.n_configs for g in few if g.collection.kind == "tile" and g.split == "train"]
    assert len(kernels) == 114 and np.mean(kernels) == pytest.approx(1_842, rel=0.25)


@pytest.mark.parametrize("collection", ["layout:xla:default", "layout:nlp:random", "tile:xla"])
def test_a_file_is_the_same_whatever_else_is_made(collection: str, tmp_path: Path) -> None:
    graphs = small(collection)
    files = made(tmp_path / "both", graphs, seed=3)
    (alone,) = made(tmp_path / "alone", graphs[1:], seed=3)
    (other,) = made(tmp_path / "other", graphs[1:], seed=4)
    with pytest.raises(UsageError, match="another seed"):
        missing_graphs(tmp_path / "other", graphs, seed=3)
    assert alone.path.read_bytes() == files[1].path.read_bytes() != other.path.read_bytes()
    assert set(files) == set(find_graphs(tmp_path / "both"))
    for graph, file in zip(graphs, files, strict=True):
        with np.load(file.path) as archive:
            assert len(archive["node_opcode"]) == graph.size.n_nodes
            assert len(archive["config_runtime"]) == graph.size.n_configs
            if graph.size.n_configurable:
                assert archive["node_config_feat"].shape[1] == graph.size.n_configurable


def test_what_is_there_stays_and_test_runtimes_are_withheld(tmp_path: Path) -> None:
    graphs = small("tile:xla", "test")
    (file,) = made(tmp_path, graphs[:1])
    before = file.path.stat()
    (file.path.parent / f".{file.name}.npz.0.tmp").touch()  # what a killed one left
    both = made(tmp_path, graphs)
    assert file.path.stat() == before
    assert sorted(file.path.parent.iterdir()) == sorted(file.path for file in both)
    with np.load(file.path) as archive:
        assert not archive["config_runtime"].any()


def test_a_killed_command_goes_on_with_two_workers_and_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    options = ["--plan", "published", *map(str, VALID_TILES)]
    call("synthesize", "--out", tmp_path / "whole", *options, "--workers", 1)
    command = [sys.executable, "-m", "pipeline", "synthesize", "--out", str(tmp_path / "killed")]
    with subprocess.Popen([*command, *options], cwd=ROOT, env={**os.environ}) as process:
        while not list((tmp_path / "killed").rglob("*.npz")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    n_left = len(find_graphs(tmp_path / "whole")) - len(find_graphs(tmp_path / "killed"))
    call("synthesize", "--out", tmp_path / "killed", *options, "--workers", 2)
    whole = {file.name: file.path.read_bytes() for file in find_graphs(tmp_path / "whole")}
    assert whole == {f.name: f.path.read_bytes() for f in find_graphs(tmp_path / "killed")}
    assert n_left > 0
