"""A config that stands in the file several times is marked, or listed once."""

import json
from pathlib import Path

import numpy as np

from data.tree import find_graphs
from ensembles import load_graph, load_ranker, rank
from features.statistics.configs import statistics_of
from tests.command_line import call
from tests.ensembles.programs import LAYOUT_MODEL, LAYOUTS, TILE_MODEL, TILES


def test_rank_has_a_column_where_configs_repeat(
    rankers: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    file = next(f for f in find_graphs(tiny_tree) if f.collection.name == LAYOUTS)
    with np.load(file.path) as arrays:
        configs = arrays["node_config_feat"][[0, 1, 2, 0, 1, 2]]
        runtimes = np.arange(1, 7)
        path = tmp_path / "twice.npz"
        np.savez(path, **{**arrays, "node_config_feat": configs, "config_runtime": runtimes})
    words = ("rank", path, "--run", rankers / LAYOUT_MODEL)
    device, _, header = call(*words, "--repeats").splitlines()[:3]
    assert device.startswith("device: CPU, ")
    assert "same as" in header
    assert "same as" not in call(*words)
    ranked, distinct = (
        json.loads(call(*words, *more, "--json"))["configs"] for more in (("--repeats",), ())
    )
    first: dict[int, int] = {}
    for entry in ranked:
        earlier = first.setdefault(entry["config"] % 3, entry["config"])
        assert entry["same_as"] == (None if earlier == entry["config"] else earlier)
    assert [entry["config"] for entry in distinct] == list(first.values())


def test_what_is_printed_of_a_graph_and_a_ranking_is_a_line(rankers: Path, tiny_tree: Path) -> None:
    file = next(f for f in find_graphs(tiny_tree) if f.submission_id.startswith("tile:xla"))
    graph, ranker = load_graph(file.path), load_ranker(rankers / TILE_MODEL)
    ranked = rank(ranker, graph)
    for shown in map(repr, (graph, ranker, ranked)):
        assert len(shown.splitlines()) == 1
        assert len(shown) < 120
    assert graph.graph.file.split == file.split


def test_why_tells_each_members_place_and_what_was_measured(rankers: Path, tiny_tree: Path) -> None:
    for name, model in ((LAYOUTS, LAYOUT_MODEL), (TILES, TILE_MODEL)):
        files = [f for f in find_graphs(tiny_tree) if f.collection.name == name]
        labelled = next(f for f in files if f.split == "train")
        withheld = next(f for f in files if f.split == "test")
        graph, ranker = load_graph(labelled.path), load_ranker(rankers / model)
        ranked = rank(ranker, graph)
        config = int(ranked.order[2])
        why = ranked.why(config)
        (own,) = ranked.member_scores.values()
        below = [score for score in own if score < own[config]]
        equal = [score for score in own if score == own[config]]
        assert why["places"] == {ranked.members[0]: len(below) + (len(equal) + 1) / 2}
        assert why["place"] == 3
        assert why["runtime_ns"] == graph.graph.runtime_ns[config]
        table = statistics_of(graph.graph, "all")(np.arange(graph.graph.n_configs))
        np.testing.assert_array_equal(list(why["statistics"].values()), table[config])
        if name == LAYOUTS:
            rows = graph.graph.configs.rows(np.array([config]))[0]
            assert why["decided"] == (rows >= 0).any(axis=1).sum()
        assert rank(ranker, load_graph(withheld.path)).why(0)["runtime_ns"] is None


def test_the_command_says_why_only_if_asked(rankers: Path, tiny_tree: Path) -> None:
    file = next(f for f in find_graphs(tiny_tree) if f.submission_id.startswith("tile:xla"))
    words = ("rank", file.path, "--run", rankers / TILE_MODEL, "--top", 2)
    text = call(*words)
    assert "member" not in text
    assert "device" not in text  # no network ranks
    text = call(*words, "--why")
    assert "place 1 of" in text
    assert TILE_MODEL in text
    assert all("why" in entry for entry in json.loads(call(*words, "--why", "--json"))["configs"])
