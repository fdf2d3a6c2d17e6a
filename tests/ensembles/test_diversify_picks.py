"""Picks that cover for each other: against the definition, whatever the row order, and in a run."""

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from common.errors import PipelineError
from common.metrics import kendall_tau, ranking_from_scores
from data.graphs.distinct import config_hashes, distinct_configs
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.packing import pack_values
from data.read import read_graph
from data.tree import collection_named, find_graphs
from ensembles.blend import Mixing, blend, mix
from ensembles.diversify_picks import (
    N_CANDIDATES,
    N_LAYOUT_PICKS,
    N_TILE_PICKS,
    PickDiversity,
    _errors,
    diversify_scores,
    diversify_table,
    first_layouts,
    layout_distances,
    layout_picks,
    tile_picks,
    tile_places,
)
from ensembles.ensemble import Ensemble
from models.predict import sampled, scores_table
from pipeline.planning.made_up import Size
from pipeline.planning.made_up import layout_graph as made_up_graph

SPREAD = PickDiversity(error=2.0, length=2.0)
LAYOUT_SPREAD = PickDiversity(error=1.0, length=0.3)


def tiles_at(*bounds: tuple[int, ...]) -> NDArray[np.float32]:
    config_feat = np.zeros((len(bounds), 24), np.float32)
    for row, sizes in enumerate(bounds):
        config_feat[row, 8 : 8 + len(sizes)] = sizes
        config_feat[row, 14:16] = sum(sizes), np.prod(sizes)
    return config_feat


def grid(n: int) -> NDArray[np.float32]:
    """n x n tiles of two dimensions, powers of 2."""
    return tiles_at(*((2**i, 2**j) for i in range(n) for j in range(n)))


def test_the_first_pick_is_the_best_and_the_next_is_unlike_it() -> None:
    tiles = tiles_at((64, 64), (64, 63), (63, 64), (1, 64))  # three alike, one far away
    scores = np.array([0.0, 0.1, 0.1, 0.2], np.float32)
    assert tile_picks(scores, tiles, SPREAD).tolist()[:2] == [0, 3]
    assert tile_picks(scores, tiles, PickDiversity(0.01, 2.0)).tolist()[-1] == 3


def test_the_second_pick_has_the_lowest_expected_minimum() -> None:
    """Against E min(a, b) of two normals, in closed form (Clark, 1961)."""
    rng = np.random.default_rng(1)
    tiles, scores = grid(4), rng.normal(size=16).astype(np.float32)
    spread = PickDiversity(1.0, 1.5)
    guess = (scores - scores.mean()) / scores.std()
    places = tile_places(tiles)
    covariance = np.exp(-np.square(places[:, None] - places).sum(-1) / (2 * 1.5**2))
    first, second = tile_picks(scores, tiles, spread)[:2]
    assert first == scores.argmin()
    deviation = np.sqrt(np.maximum(2 - 2 * covariance[first], 1e-12))  # of the difference
    alpha = (guess - guess[first]) / deviation
    expected = (
        guess[first] * norm.cdf(alpha) + guess * norm.cdf(-alpha) - deviation * norm.pdf(alpha)
    )
    expected[first] = np.inf
    assert expected[second] <= expected.min() + 0.05  # the draws are finite
    assert expected[second] < np.median(expected)


def test_errors_are_shared_by_how_far_apart_configs_are(
    layout_graph: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tiles a Gaussian of the distance, of layouts an exponential; of a fifth of these, up."""
    seen = []

    def noted(
        scores: NDArray[np.float32], shared: NDArray[np.float64], *_: object
    ) -> NDArray[np.int64]:
        seen.append(shared)
        return np.arange(1)

    monkeypatch.setattr("ensembles.diversify_picks.diversify_picks", noted)
    tiles, places = grid(3), tile_places(grid(3))
    tile_picks(np.arange(9, dtype=np.float32), tiles, SPREAD)
    squares = np.square(places[:, None] - places).sum(axis=-1)
    np.testing.assert_allclose(seen[0], np.exp(-squares / (2 * SPREAD.length**2)))
    rows, _ = distinct_configs(layout_graph)
    n = next(n for n in range(len(rows), 0, -1) if n % 5)
    layout_picks(np.arange(n, dtype=np.float32), layout_graph.configs, rows[:n], LAYOUT_SPREAD)
    distances = layout_distances(layout_graph.configs, rows[: n // 5 + 1])
    np.testing.assert_allclose(seen[1], np.exp(-distances / LAYOUT_SPREAD.length))


def test_errors_are_drawn_with_their_opposites_and_correlate_as_they_should() -> None:
    shared = np.array([[1.0, 0.6], [0.6, 1.0]])
    drawn = _errors(shared)
    np.testing.assert_allclose(drawn.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(np.cov(drawn), shared, atol=0.06)


@pytest.mark.parametrize("n", [1, 2, 5, N_TILE_PICKS, N_CANDIDATES + 50])
def test_any_number_of_configs_and_equal_scores(n: int) -> None:
    tiles = tiles_at(*((1 + i % 20, 1 + i // 20) for i in range(n)))
    for scores in (np.zeros(n, np.float32), np.arange(n, dtype=np.float32)):
        picked = tile_picks(scores, tiles, SPREAD)
        assert len(set(picked.tolist())) == len(picked) == min(n, N_TILE_PICKS)
        assert picked[0] == 0 or not scores.any()


def test_candidates_are_the_best_by_score_alone() -> None:
    """A tile far from all others is picked among the last of these, and not one place later."""
    tiles = tiles_at(*((1 + i % 20, 1 + i // 20) for i in range(N_CANDIDATES + 9)))
    scores = 1e-6 * np.arange(len(tiles), dtype=np.float32)
    for place in (N_CANDIDATES - 1, N_CANDIDATES):
        far = tiles.copy()
        far[place, 8:16] = 5000
        picked = tile_picks(scores, far, PickDiversity(5.0, 2.0))
        assert (place in picked) is (place < N_CANDIDATES)


def test_picks_come_first_and_the_others_keep_their_order(tile_graph: TileGraph) -> None:
    scores = np.random.default_rng(3).normal(size=tile_graph.n_configs).astype(np.float32)
    twice = replace(
        tile_graph,
        config_feat=np.concatenate([tile_graph.config_feat, tile_graph.config_feat[:3]]),
        runtime_ns=np.concatenate([tile_graph.runtime_ns, tile_graph.runtime_ns[:3]]),
        runtime_normalizers=np.concatenate(
            [tile_graph.runtime_normalizers, tile_graph.runtime_normalizers[:3]]
        ),
    )
    given = diversify_scores(twice, np.concatenate([scores, scores[:3]]), SPREAD)
    assert given.dtype == np.float32
    np.testing.assert_array_equal(given[-3:], given[:3])  # equal configs, equal scores
    own = given[:-3]
    picked = tile_picks(scores, tile_graph.config_feat, SPREAD)
    assert own[picked].tolist() == list(range(len(picked)))
    others = np.setdiff1d(np.arange(len(own)), picked)
    np.testing.assert_array_equal(np.argsort(own[others]), np.argsort(scores[others]))


def by_content(graph: Graph) -> NDArray[np.float32]:
    """Scores of which some are equal, and those of equal configs all are."""
    return (config_hashes(graph) % np.uint64(29)).astype(np.float32)


def test_layouts_are_as_far_apart_as_nodes_differ(tiny_tree: Path) -> None:
    """Also where nodes are tied, as most are, and some more than others."""
    n_unlike = 0
    for file in find_graphs(tiny_tree, splits=("train",)):
        if file.collection.kind == "layout":
            graph = read_graph(file)
            assert isinstance(graph, LayoutGraph)
            rows = np.arange(0, graph.n_configs, 3)
            values = graph.configs.rows(rows)  # (r, k, 18)
            differing = (values[:, None] != values).any(axis=-1).mean(axis=-1)
            given = layout_distances(graph.configs, rows)
            np.testing.assert_allclose(given, differing, rtol=1e-12)
            assert len(np.unique(given)) > 2
            n_unlike += len(set(np.bincount(graph.configs.alphabets.column_of))) > 1
    assert n_unlike


def test_layout_picks_are_distinct_and_come_first(
    layout_graph: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each config three times: once as a pick at most, whatever the order of the rows."""
    monkeypatch.setattr("ensembles.diversify_picks.CONFIGS_PER_PICK", 1)
    whole = layout_graph.only(np.tile(np.arange(layout_graph.n_configs), 3))
    scores = by_content(whole)
    given = diversify_scores(whole, scores, LAYOUT_SPREAD)
    order = ranking_from_scores(given)
    first, group = distinct_configs(whole)
    picks, others = order[:N_LAYOUT_PICKS], order[N_LAYOUT_PICKS:]
    assert given[picks].tolist() == list(range(N_LAYOUT_PICKS))
    assert len(set(group[picks])) == N_LAYOUT_PICKS
    np.testing.assert_array_equal(picks, first[group[picks]])  # the first rows of theirs
    assert scores[picks[0]] == scores.min()
    assert (np.diff(scores[others]) >= 0).all()  # copies of picks among them
    copies = set(np.flatnonzero(scores == scores.min())) - set(picks)  # of the best
    assert copies
    assert set(others[: len(copies)]) == copies  # right after the picks
    assert picks.tolist() != ranking_from_scores(scores)[:N_LAYOUT_PICKS].tolist()
    mixed = np.random.default_rng(0).permutation(whole.n_configs)
    elsewhere = whole.only(mixed)
    again = ranking_from_scores(diversify_scores(elsewhere, scores[mixed], LAYOUT_SPREAD))
    hashes = config_hashes(whole)
    assert config_hashes(elsewhere)[again[:5]].tolist() == hashes[picks].tolist()


def test_layout_picks_are_among_the_best_fifth(
    layout_graph: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However unlike the best config the worst are."""
    monkeypatch.setattr("ensembles.diversify_picks.CONFIGS_PER_PICK", 1)
    first, group = distinct_configs(layout_graph)
    distances = layout_distances(layout_graph.configs, first)[0]
    place = np.argsort(np.argsort(distances, kind="stable"))
    far = PickDiversity(error=20.0, length=0.3)
    given = diversify_scores(layout_graph, place[group].astype(np.float32), far)
    picked = place[group][ranking_from_scores(given)[:N_LAYOUT_PICKS]]
    assert N_LAYOUT_PICKS < picked.max() < math.ceil(len(first) / 5)


def config(*tensors: tuple[int, ...]) -> NDArray[np.int8]:
    """Three tensors a node, as minor-to-major orders; () is left to the compiler."""
    padded = [[*tensor, *[-1] * (6 - len(tensor))] for tensor in tensors]
    return np.array(padded, np.int8).reshape(-1, 18)


LEFT, ROWS, COLUMNS, CUBE = (), (1, 0), (0, 1), (2, 1, 0)


def test_the_first_pick_names_the_most_usual_layouts_where_the_best_asks_for_nothing() -> None:
    of_two_nodes = {
        "all left": (LEFT,) * 6,
        "one": (LEFT, ROWS, *(LEFT,) * 4),
        "most": (CUBE, ROWS, ROWS, LEFT, LEFT, LEFT),
        "as many": (LEFT, LEFT, LEFT, CUBE, ROWS, ROWS),
        "unusual": (CUBE, ROWS, COLUMNS, CUBE, ROWS, ROWS),
    }
    configs = pack_values(np.stack([config(*tensors) for tensors in of_two_nodes.values()]))

    def first(*names: str) -> str:
        rows = np.array([list(of_two_nodes).index(name) for name in names])
        return names[first_layouts(configs, rows)]

    assert first("all left", "one", "unusual", "most", "as many") == "most"
    assert first("one", "all left", "as many", "most") == "as many"
    assert first("all left", "unusual") == "all left"
    assert first("unusual", "all left", "most") == "unusual"


def test_the_first_layouts_are_the_first_pick() -> None:
    size = Size(nodes=60, edges=60, configurable=20, configs=100)
    values = made_up_graph(size, np.random.default_rng(0)).configs.rows(np.arange(100))
    values[:2] = -1
    values[1, :, :2] = ROWS
    graph = replace(made_up_graph(size, np.random.default_rng(0)), configs=pack_values(values))
    scores = np.arange(100, dtype=np.float32)
    given = diversify_scores(graph, scores, LAYOUT_SPREAD)
    assert given[1] == 0 and given[0] > 0
    assert diversify_scores(graph, np.roll(scores, 50), LAYOUT_SPREAD)[50] == 0  # far behind


@pytest.mark.parametrize(("n_configs", "n_picks"), [(10, 1), (76, 3), (200, 5)])
def test_the_fewer_layouts_there_are_the_fewer_are_picked(n_configs: int, n_picks: int) -> None:
    """So that picks cost the order of a short file little."""
    size = Size(nodes=60, edges=60, configurable=20, configs=n_configs)
    configs = made_up_graph(size, np.random.default_rng(0)).configs
    rows = np.arange(n_configs)
    picks = layout_picks(rows.astype(np.float32), configs, rows, LAYOUT_SPREAD)
    assert len(picks) == len(set(picks)) == n_picks


def test_the_memory_of_many_layouts_is_bounded() -> None:
    size = Size(nodes=600, edges=600, configurable=500, configs=20_000)
    graph = made_up_graph(size, np.random.default_rng(0))
    scores = by_content(graph)  # the hashes are made here
    tracemalloc.start()
    try:
        given = diversify_scores(graph, scores, LAYOUT_SPREAD)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6  # as (c, k) int64 configs alone would take 80 MB
    assert kendall_tau(given, scores) > 0.999


class Knowing:
    """Scores tiles by their first bound, and layouts by content."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        return -graph.config_feat[:, 8] if isinstance(graph, TileGraph) else by_content(graph)


@pytest.mark.parametrize(
    ("name", "diversity"), [("tile:xla", SPREAD), ("layout:xla:random", LAYOUT_SPREAD)]
)
def test_a_table_and_an_ensemble_agree(
    name: str, diversity: PickDiversity, tiny_tree: Path
) -> None:
    collection = collection_named(name)
    files = find_graphs(tiny_tree, collections=(collection,), splits=("train",))
    mixing = Mixing("minmax-mean", {"a-seed0": 1.0}, diversity)
    ensemble = Ensemble(collection, {"a-seed0": Knowing()}, mixing)
    for rows in ({}, sampled(files, 25)):  # as of valid_configs
        graphs = [read_graph(file) for file in files]
        if rows:
            graphs = [graph.only(rows[graph.file.submission_id]) for graph in graphs]
        tables = {"a-seed0": pl.concat([scores_table(g, Knowing().score(g)) for g in graphs])}
        mixed = mix(tables, mixing, files)
        expected = np.concatenate([ensemble.score(graph) for graph in graphs])
        np.testing.assert_array_equal(mixed["score"].to_numpy(), expected)
        assert mixed.drop("score").equals(tables["a-seed0"].drop("score"))
        blended = blend(tables, method=mixing.method, weights=mixing.weights)
        assert not mixed.equals(blended)
    order = np.random.default_rng(0).permutation(mixed.height)
    if name == "tile:xla":  # of equal layouts the first row is the pick
        assert diversify_table(blended[order], files[::-1], diversity).equals(mixed[order])
    others = [blended.with_columns(config_hash=pl.lit(7, pl.UInt64))]
    for part in [*others, *([blended[1:]] if name == "tile:xla" else [])]:
        with pytest.raises(PipelineError, match="holds other configs than the scores"):
            diversify_table(part, files, diversity)
    with pytest.raises(PipelineError, match="scored, but there is no file of it to read"):
        diversify_table(blended, files[1:], diversity)
