"""Which graphs and configs decide on a blend: those of a source's two searches together."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from common.metrics import ranking_score
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.labels import Labels
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.blend import BlendSpec, choice_file, read_choice, run_blend
from ensembles.choice.choose import RECIPE
from ensembles.choice.in_run import choose, choose_in_run, read_judged, too_few
from models.config.recipe import BlendConfig
from models.predict import read_ahead, sampled, scores_table
from models.trees.linear import BASELINES

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


def test_kernels_of_one_runtime_are_judged_and_such_layouts_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles, layouts = (
        find_graphs(SAMPLE, collections=(collection_named(name),), splits=("train",))[:2]
        for name in ("tile:xla", "layout:xla:random")
    )
    monkeypatch.setattr(
        "ensembles.choice.in_run.read_labels_of", lambda _: Labels(np.full(9, 7, np.int64))
    )
    assert [*read_judged([*tiles, *layouts])] == tiles


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        # As many as an official xla split has.
        (("bert", "inception", "resnet50", "resnet_v1", "tf2_bert", "unet_3d", "ssd"), None),
        (("bert", "unet_3d", "inception"), "3 labelled graphs of 3 families; a choice needs 6"),
        ([f"unet_3d.{n}x{n}.fp32" for n in range(2, 12)], "10 labelled graphs of 1 families; a"),
    ],
)
def test_few_graphs_or_families_do_not_suffice(names: Sequence[str], reason: str | None) -> None:
    told = too_few([GraphFile(SEARCHES[0], "valid", name, Path(name)) for name in names])
    assert told is None if reason is None else str(told).startswith(reason)


def test_only_configs_with_a_score_count() -> None:
    files = find_graphs(SAMPLE, collections=SEARCHES[:1], splits=("train",))[:8]
    graphs = list(read_ahead(files, sampled(files, 5)))
    scores = (scores_table(graph, BASELINES["layout"].score(graph)) for graph in graphs)
    tables = dict.fromkeys("ab", pl.concat(scores))
    spec = BlendSpec("minmax-mean", {"a": 1.0, "b": 1.0})
    choice = choose(read_judged(files), tables, recipe=spec)
    score = partial(ranking_score, "layout", as_submitted=True)
    taus = [score(BASELINES["layout"].score(graph), graph.runtime) for graph in graphs]
    assert choice["n_graphs"] == len(files)
    assert choice["member_values"]["a"] == pytest.approx(np.mean(taus))
