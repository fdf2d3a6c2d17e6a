"""Statistics as parquet files, and the page of their formulas."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.tree import COLLECTIONS, find_graphs
from features.statistics.configs import ALL_STATISTICS, statistics_names, statistics_of
from features.statistics.layout_tables import LAYOUT_DETAILS, LAYOUT_STATISTICS
from features.statistics.program import PROGRAM_STATISTICS
from features.statistics.tile import TILE_DETAILS, TILE_STATISTICS
from tests.features.graphs import random_layout_graph, random_tile_graph
from tests.models.rearrange import relabel_nodes
from tests.support.command_line import call
from tests.support.real_data import ROOT


def test_the_page_has_a_formula_for_every_statistic() -> None:
    page = (ROOT / "docs" / "reference" / "statistics.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", page, flags=re.M)
    named = {
        text.split("\n")[0]: re.findall(r"^\| `(.*?)` \|", text, re.M)
        for text in sections
        if "| statistic |" in text
    }
    assert {heading: sorted(names) for heading, names in named.items()} == {
        "Layout configs: plain": sorted(LAYOUT_STATISTICS),
        "Layout configs: details": sorted(LAYOUT_DETAILS),
        "Tile configs: plain": sorted(TILE_STATISTICS),
        "Tile configs: details": sorted(TILE_DETAILS),
        "The program or kernel, for both": sorted(PROGRAM_STATISTICS),
    }


@pytest.mark.parametrize("draw", [random_layout_graph, random_tile_graph])
def test_how_nodes_are_numbered_does_not_matter(draw: Callable[[int], Graph]) -> None:
    for seed in range(15):
        graph = draw(seed)
        order = np.random.default_rng(seed).permutation(graph.n_nodes)
        other = relabel_nodes(graph, order)
        other = replace(other, edge_index=other.edge_index[::-1])  # operands are listed in order
        rows = np.arange(graph.n_configs)
        usual, renumbered = (statistics_of(own, "all")(rows) for own in (graph, other))
        for column, name in enumerate(statistics_names(graph.file.collection.kind, "all")):
            both = renumbered[:, column], usual[:, column]
            np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-6, err_msg=name)


def test_statistics_do_not_depend_on_the_other_configs_of_the_file() -> None:
    for seed in range(15):
        graph = random_layout_graph(seed)
        every = np.arange(graph.n_configs)
        rows = every[: 1 + len(every) // 2]
        # The first half of the configs, alone and repeated after all configs.
        alone, repeated = graph.only(rows), graph.only(np.r_[every, rows])
        expected = statistics_of(graph, "all")(rows)
        for other in (alone, repeated):
            np.testing.assert_array_equal(statistics_of(other, "all")(rows), expected)


def test_files_have_a_row_per_config_and_are_scanned_as_one_table(
    tiny_tree: Path, tmp_path: Path
) -> None:
    files = find_graphs(tiny_tree)
    assert f"{len(files)} graphs" in call("statistics", "--data", tiny_tree, "--out", tmp_path)
    for file in files:
        path = tmp_path / file.collection.folder / file.split / f"{file.name}.parquet"
        table, graph = pl.read_parquet(path), read_graph(file)
        rows, names = np.arange(graph.n_configs), ALL_STATISTICS[file.collection.kind]
        assert table["config"].to_list() == rows.tolist()
        runtime = graph.runtime_ns if graph.is_labelled else [None] * graph.n_configs
        assert table["runtime_ns"].to_list() == [*runtime]
        expected = statistics_of(graph, "all")(rows)
        np.testing.assert_array_equal(table.select(names).to_numpy(), expected, strict=True)
    layouts = ",".join(collection.name for collection in COLLECTIONS[1:])
    options = ("--collections", layouts, "--splits", "valid", "--out", tmp_path / "valid")
    call("statistics", "--data", tiny_tree, *options)
    scan = pl.scan_parquet(tmp_path / "valid" / "**" / "*.parquet").select("graph").unique()
    valid = {f.submission_id for f in files if f.split == "valid" and f.collection.kind == "layout"}
    assert set(scan.collect()["graph"]) == valid
