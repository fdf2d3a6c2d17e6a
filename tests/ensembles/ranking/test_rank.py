"""Ranking of npz files, tuning data, HLO modules and user configs, in Python and by command."""

import doctest
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from common.settings import ROOT
from data.graphs.graph import LayoutGraph, group_means
from data.graphs.packing import pack_values
from data.tree import GraphFile
from ensembles import load_graph, load_ranker, rank
from ensembles.picks import top_k_to_measure
from ensembles.ranking import layouts as printing
from features.statistics.configs import statistics_of
from tests.ensembles.programs import (
    LAYOUT_MODEL,
    LAYOUTS,
    TILE_MODEL,
    TILES,
    dense_module,
    first_of,
    plain_module,
    write,
)
from tests.features.hlo_modules import layout_tuning, tile_tuning
from tests.support.command_line import call, python_in

CHOICE = "compiler's choice"


def ranked(file: Path, run: Path, *words: object) -> Any:
    return json.loads(call("rank", file, "--run", run, "--json", *words))


def rewritten(file: GraphFile, path: Path, **changes: Any) -> Path:
    """Write a file's arrays elsewhere, some of them changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with np.load(file.path) as arrays:
        np.savez(path, **{**arrays, **changes})
    return path


def test_an_npz_is_ranked_by_the_scores_of_its_models_and_read_wherever_it_lies(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    for name, model in ((LAYOUTS, LAYOUT_MODEL), (TILES, TILE_MODEL)):
        file = first_of(tiny_tree, name)
        graph = load_graph(file.path)
        assert (graph.collection, graph.instruction_names) == (file.collection, None)
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


def test_networks_rank_without_the_libraries_of_trees(rankers: Path, tiny_tree: Path) -> None:
    words = ["rank", str(first_of(tiny_tree, LAYOUTS).path), "--run", str(rankers / LAYOUT_MODEL)]
    no_trees = "import sys; sys.modules.update(lightgbm=None, sklearn=None)"
    code = f"{no_trees}; from pipeline.__main__ import app; app({words})"
    assert f"ranked by   {LAYOUT_MODEL}" in python_in(ROOT, "-c", code)


def test_user_configs_are_ranked(rankers: Path, tmp_path: Path) -> None:
    ranker = load_ranker(rankers / LAYOUT_MODEL)
    # Only a configurable node needs room for its layouts.
    graph = load_graph(write(tmp_path / "dense.pb", dense_module(deepest=7)))
    assert isinstance(graph.graph, LayoutGraph)
    alone = rank(ranker, graph, configs=graph.candidates(1))
    assert [node.is_left_open for node in alone.layouts(0)] == [True] * 3
    configs = graph.candidates(20, seed=5)
    ranked = rank(ranker, graph, configs=configs)
    assert ranked.scores.shape == (20,) and len(set(ranked.scores.tolist())) > 5
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
    assert load_graph(f"{kernels}#-1234").name == "kernels_-1234"
    is_open = np.full((3, 3, 18), -1.0)
    fraction, too_deep, repeated, gap = (is_open.copy() for _ in range(4))
    fraction[1, 1, 2] = 0.5
    too_deep[1, 1, 6:9] = [2, 1, 0]  # the input of the reshape has two dimensions
    repeated[2, 2, :2] = 0
    gap[2, 2, :3] = [0, -1, 1]
    ranking = rank(layouts, graph, configs=graph.candidates(1))

    def of_file(values: NDArray[np.float64]) -> object:
        whole = replace(graph.graph, configs=pack_values(values.astype(np.int8)))
        return rank(layouts, replace(graph, graph=whole, has_configs=True))

    cases: dict[str, Callable[[], object]] = {
        "has layout configs; the models rank those of tile": lambda: rank(tiles, graph),
        "have shape (3, 18); expected (c, 3, 18)": lambda: rank(layouts, graph, is_open[0]),
        "node 1, value 2 is 0.5; expected a whole": lambda: rank(layouts, graph, fraction),
        "input is given the order [2, 1, 0]; expected": lambda: rank(layouts, graph, too_deep),
        "output is given the order [0, 0]; expected": lambda: of_file(repeated),
        "output is given the order [0, -1, 1]; expected": lambda: of_file(gap),
        "2 modules and none chosen; ": lambda: load_graph(kernels),
        "this file has tiles": lambda: load_graph(kernels, kernel="abc").candidates(3),
        "top 0: expected 1 or more": lambda: rank(layouts, graph, top=0),
        "1000000000 candidates; expected 1..39768215 ": lambda: graph.candidates(10**9),
        "has no configs; expected some, for example configs=graph": lambda: rank(layouts, graph),
        "no config 1; expected 0..0": lambda: ranking.layouts(1),
        "its configs are layouts, no tiles": lambda: ranking.tile(0),
    }
    for message, function in cases.items():
        with pytest.raises(PipelineError, match=re.escape(message)):
            function()


def test_a_config_that_repeats_is_listed_once(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    file = first_of(tiny_tree, LAYOUTS)
    configs = np.load(file.path)["node_config_feat"][[0, 1, 2, 0, 1, 2]]
    changes = {"node_config_feat": configs, "config_runtime": np.arange(1, 7)}
    path = rewritten(file, tmp_path / "twice.npz", **changes)
    words = ("rank", path, "--run", rankers / LAYOUT_MODEL)
    assert call(*words).splitlines()[0].startswith("device: CPU, ")
    ranked = json.loads(call(*words, "--json"))
    found = rank(load_ranker(rankers / LAYOUT_MODEL), load_graph(path))
    order, whys = found.order.tolist(), [found.why(row) for row in range(6)]
    assert [why["place"] for why in whys[:3]] == [why["place"] for why in whys[3:]]
    assert {why["place"] for why in whys} == {1, 2, 3}  # copies are not counted, of members either
    assert {place for why in whys for place in why["places"].values()} == {1, 2, 3}
    first = {row % 3: row for row in reversed(order)}
    listed = [entry["config"] for entry in ranked["configs"]]
    assert listed == sorted(first.values(), key=order.index)
    assert [entry["rank"] for entry in ranked["configs"]] == [1, 2, 3]
    assert ranked["n_configs"] == 6


def test_noise_between_equal_configs_is_not_charged_to_the_order(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    """Rows 0, 2 and 4 are the fastest config, measured as 4, 2 and 3: the first pick is perfect."""
    file = first_of(tiny_tree, LAYOUTS)
    configs = np.load(file.path)["node_config_feat"][[0, 1, 0, 2, 0]]
    _, *others = np.flatnonzero((configs[1] >= 0).any(axis=1))
    configs[1, others] = -1  # one node is left
    changes = {"node_config_feat": configs, "config_runtime": np.array([4, 9, 2, 5, 3])}
    path = rewritten(file, tmp_path / "noisy.npz", **changes)
    ranked = rank(load_ranker(rankers / LAYOUT_MODEL), load_graph(path))
    scores = np.array([0, 3, 0, 1, 0], np.float32)
    measured = replace(ranked, scores=scores).measured()
    assert measured == {"kendall_tau": 1, **{f"slowdown@{k}": 1 for k in (1, 5, 10)}}
    assert replace(ranked, scores=-scores).measured()["slowdown@1"] == 3  # 9 over the mean of 3
    first_counts = replace(ranked, scores=np.array([0, 3, 5, 1, 6], np.float32)).measured()
    # The scores 0, 3 and 1 have the order of the runtimes 3, 9 and 5.
    assert first_counts["kendall_tau"] == pytest.approx(1)
    whys = [ranked.why(row) for row in range(5)]
    assert [(why["runtime_ns"], why["n_equal"]) for why in whys[:2]] == [(3, 3), (9, 1)]
    rows, runtime = [0, 2, 3, 3, 1, 1], 2 * np.arange(4, 10)
    changes = {"node_config_feat": configs[rows], "config_runtime": runtime}
    repeated = rewritten(file, tmp_path / "default.npz", **changes)
    default = rank(load_ranker(rankers / LAYOUT_MODEL), load_graph(repeated)).default()
    assert default == {"config": 4, "place": default["place"], "slowdown": 17 / 9}
    text = call("rank", path, "--run", rankers / LAYOUT_MODEL, "--why")
    assert "measured 3 ns, the mean of 3 equal rows; decides" in text
    assert "; of 3 distinct configs (`run` and `score` judge all 5 rows)" in text


def decided(tree: Path, folder: Path, name: str, what: str, **arrays: np.ndarray) -> Path:
    """Copy a train file with other arrays into a tree, and note the kind of its configs there."""
    file = first_of(tree, name)
    path = rewritten(file, folder / file.path.relative_to(tree), **arrays)
    graphs = {file.submission_id: {"decides": what}}
    manifest = {"environments": {}, "graphs": graphs, "left_out": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_options_and_fusions_have_a_note(rankers: Path, tiny_tree: Path, tmp_path: Path) -> None:
    """As the manifest of `collect` has it: options are in a file of tiles, fusions of layouts."""
    options = np.zeros((3, 24), np.float32)
    options[1:, :2] = [[1, 0], [1, 2]]
    of_each = {"config_runtime": np.arange(1, 4), "config_runtime_normalizers": np.ones(3, int)}
    path = decided(tiny_tree, tmp_path, TILES, "options", config_feat=options, **of_each)
    text, library = call("rank", path, "--run", rankers / TILE_MODEL), "dot-library-rewriter"
    note = "configs decide compiler options: unless RUN learned from such files, its order is none"
    assert f"note: {note}" in text
    assert f"xla_disable_hlo_passes={library} xla_cpu_prefer_vector_width=128" in text
    entries = {e["config"]: e for e in ranked(path, rankers / TILE_MODEL)["configs"]}
    assert entries[0]["options"] == {} and "tile" not in entries[0]
    assert entries[1]["options"] == {"xla_disable_hlo_passes": library}
    path = decided(tiny_tree, tmp_path, LAYOUTS, "fusion")
    note = "note: configs decide which results are kept apart: unless"
    assert note in call("rank", path, "--run", rankers / LAYOUT_MODEL)
    listed = ranked(path, rankers / LAYOUT_MODEL, "--top", 100_000)["configs"]
    decides = (np.load(path)["node_config_feat"] >= 0).any(axis=2).sum(axis=1)  # (c,)
    assert any(decides) and all(len(e["kept_apart"]) == decides[e["config"]] for e in listed)


def test_an_optimized_module_has_a_note(rankers: Path, tmp_path: Path) -> None:
    shape = "f32[8,8]{1,0}"
    fused = f"%f {{\n  p = {shape} parameter(0)\n  ROOT n = {shape} negate(p)\n}}\n\n"
    entry = f"ENTRY %main {{\n  a = {shape} parameter(0)\n  d = {shape} dot(a, a), CONTRACT\n"
    entry = entry.replace("CONTRACT", "lhs_contracting_dims={1}, rhs_contracting_dims={0}")
    root = f"  ROOT r = {shape} fusion(d), kind=kLoop, calls=f\n}}\n"
    path, note = tmp_path / "module.txt", "note: module is optimized; layouts are chosen before"
    for fusion, plain in ((root, False), (f"  ROOT r = {shape} negate(d)\n}}\n", True)):
        path.write_text(f"HloModule m\n\n{fused * (not plain)}{entry}{fusion}")
        text = call("rank", path, "--run", rankers / LAYOUT_MODEL, "--candidates", 3)
        assert (note in text) is not plain


def test_why_prints_the_rank_of_each_member_and_the_runtime(rankers: Path, tiny_tree: Path) -> None:
    for name, model in ((LAYOUTS, LAYOUT_MODEL), (TILES, TILE_MODEL)):
        labelled, withheld = (first_of(tiny_tree, name, split) for split in ("train", "test"))
        graph, ranker = load_graph(labelled.path), load_ranker(rankers / model)
        ranked = rank(ranker, graph)
        assert all(len(repr(shown)) < 120 for shown in (graph, ranker, ranked))
        distinct = [entry["config"] for entry in ranked.best()]
        config = distinct[2]
        why = ranked.why(config)
        (own,) = ranked.member_scores.values()
        below = [row for row in distinct if own[row] < own[config]]
        equal = [row for row in distinct if own[row] == own[config]]
        assert why["places"] == {ranked.members[0]: len(below) + (len(equal) + 1) / 2}
        assert why["place"] == 3
        assert why["runtime_ns"] == graph.graph.runtime_ns[config]
        table = statistics_of(graph.graph, "all")(np.arange(graph.graph.n_configs))
        np.testing.assert_array_equal(list(why["statistics"].values()), table[config])
        if name == LAYOUTS:
            default = ranked.default()
            assert default is not None
            runtime = group_means(graph.graph.runtime_ns, ranked.group)
            slowdown = runtime[ranked.group[default["config"]]] / runtime.min()
            assert default["slowdown"] == pytest.approx(slowdown)
            assert "slowdown" not in (rank(ranker, load_graph(withheld.path)).default() or {})
            rows = graph.graph.configs.rows(np.array([config]))[0]
            assert why["decided"] == (rows >= 0).any(axis=1).sum()
        assert rank(ranker, load_graph(withheld.path)).why(0)["runtime_ns"] is None


@pytest.mark.parametrize(("name", "model"), [(LAYOUTS, LAYOUT_MODEL), (TILES, TILE_MODEL)])
def test_measure_prints_the_configs_to_measure(
    name: str, model: str, rankers: Path, tiny_tree: Path
) -> None:
    file = first_of(tiny_tree, name)
    found = rank(load_ranker(rankers / model), load_graph(file.path))
    listed = ranked(file.path, rankers / model, "--measure", 4)
    rows, runtime = [e["config"] for e in listed["configs"]], found.graph.graph.runtime
    assert rows == top_k_to_measure(found.scores, found.graph.graph, 4).tolist()
    assert [e["rank"] for e in listed["configs"]] == [found.place(row) for row in rows]
    slowdown = runtime[rows].min() / runtime.min()
    assert listed["measured"]["diversified_slowdown@4"] == pytest.approx(slowdown)


def test_layouts_of_a_protobuf_by_name_and_run(rankers: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "program.pb", layout_tuning())
    found = ranked(path, rankers / LAYOUT_MODEL)
    # The collection is the model's own.
    assert (found["name"], found["collection"]) == ("program", LAYOUTS)
    assert found["ms_per_config"] > 0
    by_config = {one["config"]: one for one in found["configs"]}
    assert {config: one["run"] for config, one in by_config.items()} == {0: 0, 1: 1, 2: 3}
    module = layout_tuning().module
    names = [i.name for computation in module.computations for i in computation.instructions]
    orders = {"output": [1, 2, 3, 0], "input": CHOICE, "kernel": [1, 2]}
    assert by_config[2]["layouts"] == [
        {"node": node, "name": names[node], "opcode": opcode, **orders}
        for node, opcode in ((10, "convolution"), (12, "dynamic-slice"))
    ]
    assert "ms per config, 3 in" in call("rank", path, "--run", rankers / LAYOUT_MODEL)


def test_tiles_of_a_protobuf_by_kernel_and_field(rankers: Path, tmp_path: Path) -> None:
    tuning = tile_tuning()
    tuning.modules[0].runs[2].op_config.tile_size_config.iteration_bounds.extend([2, 7])
    path = write(tmp_path / "program.hlo.pb", tuning)
    run = rankers / TILE_MODEL
    kernels = ranked(path, run)["kernels"]
    assert [kernel["name"] for kernel in kernels] == ["program_-1234", "program_abc"]
    first = {one["config"]: one for one in kernels[0]["configs"]}
    bounds = {"kernel_bounds": [], "output_bounds": [3, 4], "input_bounds": []}
    tile = bounds | {"iteration_bounds": [2, 7]}
    assert (first[1]["tile"], first[1]["run"]) == (tile, 2)  # run 1 did not run
    for name in ("program_abc", "abc", "fusion.1"):
        assert ranked(path, run, "--kernel", name)["configs"] == kernels[1]["configs"]
    table = call("rank", path, "--run", run)
    assert table.count("kernel      program_") == 2
    assert "3 x 4" in table and "2 x 7" in table
    assert doctest.testmod(printing) == (0, 2)


def test_an_hlo_module_ranks_candidates_that_are_legal(rankers: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "dense.hlo.pb", dense_module())
    words = ("--candidates", 40, "--top", 40)
    found = ranked(path, rankers / LAYOUT_MODEL, *words, "--seed", 3)
    other = ranked(path, rankers / LAYOUT_MODEL, *words, "--seed", 4)
    assert found["configs"] != other["configs"] and found["n_configs"] == 40
    by_config = {one["config"]: one["layouts"] for one in found["configs"]}
    assert len({str(layouts) for layouts in by_config.values()}) == 40
    ranks = {"output": (2, 3, 3), "input": (2, 2, 3), "kernel": (2, 0, 3)}
    for config, layouts in by_config.items():
        for tensor, of_nodes in ranks.items():
            for node, n_dimensions in zip(layouts, of_nodes, strict=True):
                order = node.get(tensor, CHOICE)
                assert order == CHOICE or (config and sorted(order) == [*range(n_dimensions)])
    assert [node["opcode"] for node in found["configs"][0]["layouts"]] == ["dot", "reshape", "dot"]
    assert "kernel" not in found["configs"][0]["layouts"][1]


def test_wrong_files_and_runs_are_one_line(rankers: Path, tiny_tree: Path, tmp_path: Path) -> None:
    layouts, tiles = rankers / LAYOUT_MODEL, rankers / TILE_MODEL
    tuned = write(tmp_path / "tuned.pb", layout_tuning())
    kernels = write(tmp_path / "kernels.pb", tile_tuning())
    noise = tmp_path / "noise.pb"
    noise.write_bytes(bytes(range(256)) * 4)
    cut_npz = tmp_path / "cut.npz"
    cut_npz.write_bytes(next(tiny_tree.rglob("*.npz")).read_bytes()[:500])
    plain = write(tmp_path / "plain.pb", plain_module())
    deep = write(tmp_path / "deep.pb", dense_module(deepest=7, last="reshape"))
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((noise, "--run", layouts), 1, "damaged, cut short or something else; expected tun"),
        ((cut_npz, "--run", layouts), 1, f"{cut_npz}: "),
        ((kernels, "--run", layouts), 1, f"{layouts}: ranks layout configs, not tile:xla"),
        ((tuned, "--run", layouts, "--collection", TILES), 2, f"{tuned}: has layout configs; --"),
        ((plain, "--run", layouts), 1, "has no convolution, dot or reshape with dimensions"),
        ((deep, "--run", layouts), 1, "has a tensor with more than 6 dimensions"),
        ((kernels, "--run", tiles, "--kernel", "x"), 2, "no modules called 'x'; expected "),
        ((tmp_path / "no.pb", "--run", layouts), 1, "no such file"),
    ]
    for words, code, expected in cases:
        line = call("rank", *words, expect=code)
        assert line.startswith("error: ") and expected in line and line.count("\n") == 1, line
