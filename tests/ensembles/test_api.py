"""The Python API: files of each kind, user configs, and the example of the docs."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError, UsageError
from common.settings import ROOT
from data.graphs.graph import LayoutGraph
from data.graphs.packing import pack_values
from ensembles import load_graph, load_ranker, rank
from tests.ensembles.programs import (
    LAYOUT_MODEL,
    LAYOUTS,
    TILE_MODEL,
    TILES,
    dense_module,
    first_of,
    write,
)
from tests.features.hlo_modules import tile_tuning
from tests.support.command_line import python_in

PAGE = (ROOT / "docs" / "guides" / "rank.md").read_text(encoding="utf-8")


def test_an_npz_is_ranked_by_the_scores_of_its_models_and_read_wherever_it_lies(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    for name, model in ((LAYOUTS, LAYOUT_MODEL), (TILES, TILE_MODEL)):
        file = first_of(tiny_tree, name)
        graph = load_graph(file.path)
        assert graph.collection == file.collection
        assert graph.instruction_names is None
        ranked = rank(load_ranker(rankers / model), graph, top=3)
        expected = load_ranker(rankers / model).score(graph.graph)
        np.testing.assert_array_equal(ranked.scores, expected)
        np.testing.assert_array_equal(ranked.order, np.argsort(expected, kind="stable"))
        assert [entry["config"] for entry in ranked.best()] == ranked.order[:3].tolist()
        assert ranked.seconds > 0
        kind = name.partition(":")[0]
        path = Path(shutil.copy(file.path, tmp_path / f"{kind}.npz"))
        # The keys of a file show its kind.
        outside = load_graph(path)
        assert (outside.kind, outside.collection, outside.name) == (kind, None, kind)
        assert load_graph(path, collection=name).collection == file.collection


def test_user_configs_are_ranked(rankers: Path, tmp_path: Path) -> None:
    ranker = load_ranker(rankers / LAYOUT_MODEL)
    # Only a configurable node needs room for its layouts.
    graph = load_graph(write(tmp_path / "dense.pb", dense_module(deepest=7)))
    assert isinstance(graph.graph, LayoutGraph)
    alone = rank(ranker, graph, configs=graph.candidates(1))
    assert [node.is_left_open for node in alone.layouts(0)] == [True] * 3
    configs = graph.candidates(20, seed=5)
    ranked = rank(ranker, graph, configs=configs)
    assert ranked.scores.shape == (20,)
    assert len(set(ranked.scores.tolist())) > 5
    assert graph.instruction_names
    for config in range(20):
        for node, row in zip(ranked.layouts(config), configs[config], strict=True):
            assert node.name == graph.instruction_names[node.node]
            flat = [list(order or ()) for order in node.tensors.values()]
            parts = row.reshape(3, 6)[: len(flat)]
            assert flat == [part[part >= 0].tolist() for part in parts]
    # Another order of the same configs gives the same order of the same scores.
    turned = rank(ranker, graph, configs=configs[::-1])
    np.testing.assert_allclose(turned.scores[::-1], ranked.scores, rtol=1e-4, atol=1e-6)


def test_what_does_not_fit_is_refused(rankers: Path, tmp_path: Path) -> None:
    layouts, tiles = (load_ranker(rankers / model) for model in (LAYOUT_MODEL, TILE_MODEL))
    graph = load_graph(write(tmp_path / "dense.pb", dense_module()))
    kernels = write(tmp_path / "kernels.pb", tile_tuning())
    with pytest.raises(PipelineError, match="has layout configs; the models rank those of tile"):
        rank(tiles, graph)
    with pytest.raises(PipelineError, match=r"have shape \(3, 18\); expected \(c, 3, 18\)"):
        rank(layouts, graph, configs=np.zeros((3, 18)))
    with pytest.raises(PipelineError, match=r"node 1, value 2 is 0\.5; expected a whole number"):
        bad = np.full((1, 3, 18), -1.0)
        bad[0, 1, 2] = 0.5
        rank(layouts, graph, configs=bad)
    with pytest.raises(PipelineError, match=r"input is given the order \[2, 1, 0\]; expected dist"):
        too_deep = np.full((2, 3, 18), -1)
        too_deep[1, 1, 6:9] = [2, 1, 0]  # the input of the reshape has two dimensions
        rank(layouts, graph, configs=too_deep)
    # The configs of a file are checked as well.
    for order in ((0, 0), (0, -1, 1)):
        values = np.full((3, 3, 18), -1, np.int8)
        values[2, 2, : len(order)] = order
        held = replace(graph.graph, configs=pack_values(values))
        wrong = replace(graph, graph=held, has_configs=True)
        with pytest.raises(PipelineError, match=r"dense\.pb: .* output is given the order \[0, "):
            rank(layouts, wrong)
    with pytest.raises(UsageError, match=r"2 modules and none chosen; .*#NAME with one of -1234"):
        load_graph(kernels)
    assert load_graph(f"{kernels}#-1234").name == "kernels_-1234"
    kernel = load_graph(kernels, kernel="abc")
    with pytest.raises(UsageError, match="this file has tiles"):
        kernel.candidates(3)
    with pytest.raises(UsageError, match="top 0: expected 1 or more"):
        rank(layouts, graph, top=0)
    with pytest.raises(UsageError, match=r"1000000000 candidates; expected 1\.\.39768215 "):
        graph.candidates(10**9)
    with pytest.raises(
        UsageError, match="has no configs; expected some, for example configs=graph"
    ):
        rank(layouts, graph)
    ranked = rank(layouts, graph, configs=graph.candidates(1))
    with pytest.raises(UsageError, match=r"no config 1; expected 0\.\.0"):
        ranked.layouts(1)
    with pytest.raises(UsageError, match="its configs are layouts, no tiles"):
        ranked.tile(0)


def test_the_example_of_the_docs_runs_from_another_folder(rankers: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(from ensembles import .*?)```", PAGE, re.S)
    write(tmp_path / "module.hlo.pb", dense_module())
    assert '"runs/first"' in example
    code = example.replace('"runs/first"', repr(str(rankers / LAYOUT_MODEL)))
    lines = python_in(tmp_path, "-c", code).splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["1", "2", "3", "4", "5"]
    assert [line.split()[0].split(".")[0] for line in lines[5:]] == ["dot", "reshape", "dot"]
