"""Which graphs and configs decide on a blend: those of a source's two searches together."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.blend import choice_file, read_choice, run_blend
from ensembles.choice.choose import RECIPE
from ensembles.choice.in_run import RUNTIME_SCHEMA, Labelled, choose_in_run, labelled
from models.config.recipe import BlendConfig
from models.predict import read_ahead, sampled, scores_table
from models.trees.linear import FLOORS

SEARCHES = tuple(collection_named(f"layout:xla:{search}") for search in ("default", "random"))
FAMILIES = ("depthwise_b1", "dilated_b1", "lstm_b4", "mixer_b1", "plain_b2")


def scored(files: list[GraphFile], by: Callable[[NDArray[np.int64]], NDArray[Any]]) -> pl.DataFrame:
    graphs = [read_graph(file) for file in files]
    return pl.concat(scores_table(g, by(g.runtime_ns).astype(np.float32)) for g in graphs)


def test_the_searches_of_a_source_choose_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(0)
    files = {
        collection: [
            file
            for file in find_graphs(SAMPLE, collections=(collection,), splits=("train",))
            if file.name in FAMILIES
        ]
        for collection in SEARCHES
    }
    tables = {
        collection: {
            "layout_linear-seed0": scored(own, lambda runtime: runtime),
            "layout_boosting-seed0": scored(own, lambda runtime: rng.random(len(runtime))),
        }
        for collection, own in files.items()
    }
    blind = {"layout_linear": 0.0}  # all trust in the blind
    blending = BlendConfig(choose=True, weights=blind)
    one = {SEARCHES[0]: files[SEARCHES[0]]}
    choose_in_run(tmp_path / "one", blending, one, tables, seed=0)
    assert "5 labelled graphs of 5 families; a choice needs 6" in caplog.messages[-1]
    choose_in_run(tmp_path / "both", blending, files, tables, seed=0)
    assert caplog.messages[-1].startswith("layout:xla:default and layout:xla:random: blended by ")
    records = [read_choice(choice_file(tmp_path / "both", collection)) for collection in SEARCHES]
    assert records[0] == records[1]
    assert records[0] is not None and records[0]["chosen"] != RECIPE
    assert (records[0]["n_graphs"], records[0]["n_families"]) == (10, 5)
    assert records[0]["of"] == ["layout:xla:default", "layout:xla:random"]
    assert records[0]["weights"]["layout_linear-seed0"] == 1
    members = list(tables[SEARCHES[0]])
    spec = run_blend(tmp_path / "both", blending, SEARCHES[0], members)
    assert spec.weights["layout_linear-seed0"] == 1


def test_kernels_of_one_runtime_count_as_they_are_scored_and_such_layouts_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles, layouts = (
        find_graphs(SAMPLE, collections=(collection_named(name),), splits=("train",))[:2]
        for name in ("tile:xla", "layout:xla:random")
    )

    def flat(file: GraphFile) -> Graph:
        graph = read_graph(file)
        return replace(graph, runtime_ns=np.full(graph.n_configs, 7))

    monkeypatch.setattr("ensembles.choice.in_run.read_graph", flat)
    assert labelled([*tiles, *layouts]).files == tiles


def choosing(*names: str) -> Labelled:
    files = [GraphFile(SEARCHES[0], "valid", name, Path(f"{name}.npz")) for name in names]
    return Labelled(files, pl.DataFrame(schema=RUNTIME_SCHEMA))


def test_seven_graphs_as_of_an_official_xla_split_suffice_and_few_or_few_families_do_not() -> None:
    names = ("bert", "inception", "resnet50", "resnet_v1", "tf2_bert", "unet_3d", "mlperf_ssd")
    assert choosing(*names).too_few() is None
    assert "3 labelled graphs" in str(choosing("bert", "unet_3d", "inception").too_few())
    siblings = choosing(*(f"unet_3d.{n}x{n}.fp32" for n in range(2, 12)))
    assert "10 labelled graphs of 1 families; a choice needs" in str(siblings.too_few())


def test_configs_that_nobody_has_scored_have_no_say(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree, collections=(SEARCHES[0],), splits=("train",))
    by, subsets = labelled(files), sampled(files, 5)
    graphs = list(read_ahead(files, subsets))
    table = pl.concat(scores_table(graph, FLOORS["layout"].score(graph)) for graph in graphs)
    scored = by.scored_by({"a": table, "b": table}).runtimes
    assert scored.select("graph", "config").equals(table.select("graph", "config"))
    assert by.scored_by({"a": table.filter(pl.col("graph") != files[0].name)}) is by
