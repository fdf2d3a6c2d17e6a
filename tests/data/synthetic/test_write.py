"""Synthetic trees and graphs: the official format, known runtimes, sizes as asked for or published.

A file depends on nothing else that is made, and is whole or not there.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from common.settings import ROOT, SAMPLE
from data.graph_store.stored_graph import read_graph, read_layout, read_tile
from data.graphs.graph import TileGraph, distinct_configs
from data.labels import WITHHELD, labels_of, read_withheld
from data.official.published import (
    LAYOUT_CONFIGS,
    MAX_TILE_RATIO,
    PartSize,
    official_names,
    official_sizes,
)
from data.synthetic.graphs import GraphSize, draw_edges
from data.synthetic.write import PLANS, published_graphs, synthesize
from data.tree import collection_named, find_graphs, missing_parts
from tests.data.npz.damaged_archives import read_arrays
from tests.support.command_line import call
from tests.support.real_data import real_files, requires_real_data


def tree_bytes(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def test_every_published_part_has_a_size() -> None:
    counts = [part.graphs for part in official_sizes()]
    assert counts[:6] == [5709, 676, 844, 61, 7, 8]
    assert counts[6:] == [69, 7, 8, 198, 20, 17, 207, 20, 17]


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
    assert np.mean(nodes) == pytest.approx(part.nodes, rel=0.005)
    if part.collection == "tile:xla":  # only means are known of it
        assert max(nodes) == MAX_TILE_RATIO * part.nodes and np.mean(configs) == part.configs
        assert max(configs) == MAX_TILE_RATIO * part.configs and min(configs) >= 2
        return
    assert max(nodes) == pytest.approx(part.most_nodes, abs=1)
    if part.split == "test":
        assert set(configs) <= {LAYOUT_CONFIGS, LAYOUT_CONFIGS + 1}
        return
    assert np.mean(configs) == part.configs
    assert max(configs) == min(part.most_configs, part.configs * part.graphs // 2)
    assert max(graph.size.n_configurable for graph in graphs) < 3_144


def test_limit_cuts_the_configs_of_train_and_valid_graphs_only() -> None:
    xla = [collection_named("layout:xla:random")]
    cut = published_graphs(xla, max_configs=300)
    for graph, whole in zip(cut, published_graphs(xla), strict=True):
        at_most = 1001 if graph.split == "test" else 300
        assert graph.size.n_configs == min(at_most, whole.size.n_configs)
        assert replace(graph, size=whole.size) == whole


@pytest.mark.parametrize("collection", ["layout:xla:default", "layout:nlp:random", "tile:xla"])
def test_file_does_not_depend_on_other_files(collection: str, tmp_path: Path) -> None:
    graphs = published_graphs([collection_named(collection)], ["train"], max_configs=200)
    graphs = sorted(graphs, key=lambda graph: (graph.size.n_configs, graph.size.n_nodes))[:2]
    for name, plans, seed in (("both", graphs, 3), ("alone", graphs[1:], 3), ("x", graphs[1:], 4)):
        synthesize(tmp_path / name, plans, seed=seed)
    with pytest.raises(UsageError, match="another seed"):
        synthesize(tmp_path / "x", graphs, seed=3)
    both, alone, other = (
        graphs[1].file(tmp_path / name).path.read_bytes() for name in ("both", "alone", "x")
    )
    assert both == alone != other
    files = find_graphs(tmp_path / "both")
    assert set(files) == {graph.file(tmp_path / "both") for graph in graphs}
    for plan in graphs:
        graph = read_graph(plan.file(tmp_path / "both"))
        n_configurable = len(getattr(graph, "node_config_ids", ()))
        assert plan.size == GraphSize(graph.n_nodes, n_configurable, graph.n_configs)


def test_interrupted_command_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    options = ["--plan", "published", "--collections", "tile:xla", "--splits", "valid,test"]
    options += ["--share", "0.005"]
    call("synthesize", "--out", tmp_path / "whole", *options)
    cut = Path(shutil.copytree(tmp_path / "whole", tmp_path / "cut"))
    (cut / WITHHELD).unlink()  # written last
    for path in sorted(cut.rglob("*.npz"))[1::2]:
        path.rename(path.with_name(f".{path.name}.x7.tmp"))
    call("synthesize", "--out", cut, *options, "--workers", 2)
    assert tree_bytes(cut) == tree_bytes(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_keys_types_and_ranks_are_those_of_the_sample(tiny_tree: Path, kind: str) -> None:
    path = next((SAMPLE / "npz" / kind).rglob("*.npz"))
    sample = read_arrays(path.read_bytes())
    for path in (tiny_tree / "npz" / kind).rglob("*.npz"):
        arrays = read_arrays(path.read_bytes())
        assert arrays.keys() == sample.keys()
        for key, values in arrays.items():
            assert (values.dtype, values.ndim) == (sample[key].dtype, sample[key].ndim)


def test_default_search_starts_at_the_default_repeats_and_finds_faster_configs(
    tiny_tree: Path,
) -> None:
    default, random = (
        find_graphs(tiny_tree, collections=[collection_named(f"layout:nlp:{search}")])
        for search in ("default", "random")
    )
    for file, other in zip(default[:2], random[:2], strict=True):
        graph = read_layout(file)
        first, group = distinct_configs(graph)
        assert (graph.configs.rows(first) == -1).all(axis=(1, 2)).any()
        assert 0 < 1 - len(first) / graph.n_configs < 0.7
        measured_again = graph.runtime_ns[group == np.bincount(group).argmax()]
        assert len(np.unique(measured_again)) > 1  # each measurement has its own noise
        assert np.median(graph.runtime_ns) < np.median(read_layout(other).runtime_ns)


def test_tile_configs_are_distinct_and_hold_sums_and_products(tiny_tree: Path) -> None:
    for file in find_graphs(tiny_tree, collections=[collection_named("tile:xla")]):
        config = read_tile(file).config_feat
        assert len(np.unique(config, axis=0)) == len(config)
        for start in (0, 8, 16):
            sizes = config[:, start : start + 6]
            product = np.where(sizes > 0, sizes, 1).prod(axis=1) * sizes.any(axis=1)
            assert (config[:, start + 6] == sizes.sum(axis=1)).all()
            assert (config[:, start + 7] == product).all()
        assert (config[:, 8] > 0).all()


def test_runtimes_depend_on_the_config_and_on_noise(tiny_tree: Path) -> None:
    withheld = read_withheld(tiny_tree)
    files = find_graphs(tiny_tree)
    assert missing_parts(files) == []
    assert len(files) == 4 * sum(PLANS["tiny"].layout_graphs) + sum(PLANS["tiny"].tile_kernels)
    assert set(withheld) == {file.submission_id for file in files if file.split == "test"}
    for file in files:
        graph = read_graph(file)
        labels = withheld.get(file.submission_id, labels_of(graph))
        if file.split == "test":
            assert len(file.name) == 32 and int(file.name, 16) >= 0
            assert not graph.is_labelled
        if isinstance(graph, TileGraph):
            assert labels.normalizers is not None
            assert (labels.normalizers == labels.runtime_ns[0]).all()
            assert (graph.runtime_normalizers == 1).all() == (file.split == "test")
        else:
            assert 1.2 < labels.runtime_ns.max() / labels.runtime_ns.min() < 8
        # Only noise separates equal configs.
        first, group = distinct_configs(graph)
        np.testing.assert_allclose(labels.runtime_ns, labels.runtime_ns[first][group], rtol=0.06)


def test_seed_decides_every_byte_in_any_process(tiny_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()  # an empty folder is not in the way
    command = [sys.executable, "-m", "pipeline", "synthesize", "--plan", "tiny"]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    subprocess.run([*command, "--out", tmp_path / "x"], check=True, env=environment, cwd=ROOT)
    assert tree_bytes(tmp_path / "x") == tree_bytes(tiny_tree)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--graph", "300:200:5"], "fewer than the 200 requested"),
        (["--graph", "600:20:5", "--graph", "300:200:5"], "147 configurable nodes"),
        (["--graph", "600:20:0"], "at least 1"),
        (["--graph", "600:601:5"], "no more configurable ones"),
        (["--graph", "600:20:5000000"], "1000000 configs"),
        (["--graph", "600:20:5", "--graph", "600:20:5"], "occurs twice"),
        (["--graph", "600:20:5", "--plan", "tiny"], "one of them"),
        (["--plan", "small", "--share", 0.1], "only --plan published"),
        (["--max-configs", 300], "only --plan published"),
        (["--plan", "published", "--splits", "holdout"], "holdout"),
        (["--plan", "published", "--collections", "tile:nlp"], "tile:nlp"),
    ],
)
def test_impossible_request_is_one_line_and_leaves_nothing(
    options: list[object], named: str, tmp_path: Path
) -> None:
    text = call("synthesize", "--out", tmp_path / "out", *options, expect=2)
    assert text.startswith("error: ") and text.count("\n") == 1 and named in text
    assert list(tmp_path.iterdir()) == []


@requires_real_data
def test_drawn_edges_have_the_distances_of_real_ones() -> None:
    def shares(edges: np.ndarray) -> list[float]:
        distances = np.abs(edges[:, 0] - edges[:, 1])
        return [float((distances <= limit).mean()) for limit in (1, 10, 100)]

    graphs = [read_layout(file) for file in real_files("layout")]
    assert len(graphs) >= 7
    real = np.array([shares(graph.edge_index) for graph in graphs])
    for n_nodes in (2_000, 20_000):
        edges = draw_edges(n_nodes, np.random.default_rng(n_nodes))
        assert (edges[:, 0] > edges[:, 1]).all() and edges.min() == 0
        assert len(np.unique(edges, axis=0)) == len(edges)
        drawn = shares(edges)
        assert (real.min(axis=0) - 0.02 <= drawn).all() and (drawn <= real.max(axis=0)).all()
