"""Statistics as parquet files, and the page of their formulas."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.tree import COLLECTIONS, find_graphs
from features.statistics.configs import (
    ALL_STATISTICS,
    statistics_frame,
    statistics_names,
    statistics_of,
)
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


def test_a_table_has_a_row_per_config(layout_graph: LayoutGraph, tile_graph: TileGraph) -> None:
    for graph in (layout_graph, tile_graph):
        frame = statistics_frame(graph)
        names = list(ALL_STATISTICS[graph.file.collection.kind])
        rows = np.arange(graph.n_configs)
        np.testing.assert_array_equal(frame["config"].to_numpy(), rows)
        np.testing.assert_array_equal(frame["runtime_ns"].to_numpy(), graph.runtime_ns)
        np.testing.assert_array_equal(
            frame.select(names).to_numpy(), statistics_of(graph, "all")(rows)
        )
        assert set(frame.select(names).dtypes) == {pl.Float32}


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


def test_files_are_scanned_as_one_table(tiny_tree: Path, tmp_path: Path) -> None:
    files = [f for f in find_graphs(tiny_tree) if f.collection.kind == "layout"]
    names = ",".join(collection.name for collection in COLLECTIONS[1:])
    options = ("--data", tiny_tree, "--collections", names)
    assert f"{len(files)} graphs" in call("statistics", *options, "--out", tmp_path)
    counts = dict(
        pl.scan_parquet(tmp_path / "**" / "*.parquet")
        .group_by("graph")
        .agg(pl.len(), pl.col("runtime_ns").null_count().alias("unknown"))
        .select("graph", pl.struct("len", "unknown"))
        .collect()
        .iter_rows()
    )
    for file in files:
        graph = read_graph(file)
        unknown = 0 if graph.is_labelled else graph.n_configs
        assert counts[file.submission_id] == {"len": graph.n_configs, "unknown": unknown}
    call("statistics", *options, "--splits", "valid", "--out", tmp_path / "valid")
    table = pl.scan_parquet(tmp_path / "valid" / "**" / "*.parquet").select("graph").unique()
    valid = {file.submission_id for file in files if file.split == "valid"}
    assert set(table.collect()["graph"]) == valid
