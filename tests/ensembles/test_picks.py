"""The configs to measure: against slow loops, in any order of rows, and in bounded memory."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import Graph, LayoutGraph, TileGraph, config_hashes
from data.graphs.packing import pack_values
from data.synthetic.graphs import GraphSize, make_layout_graph, sized_graph
from ensembles.picks import (
    LAYOUT_ERROR,
    first_layouts,
    lowest_expected_minimum,
    top_k_to_measure,
)
from ensembles.score_errors import (
    LAYOUT_LENGTH,
    MAX_CANDIDATES,
    normal_draws,
    tile_correlation,
    tile_places,
)

Floats = NDArray[np.float64]


def tiles_at(*sizes: tuple[int, ...]) -> NDArray[np.float32]:
    config_feat = np.zeros((len(sizes), 24), np.float32)
    for row, own in enumerate(sizes):
        config_feat[row, 8 : 8 + len(own)] = own
        config_feat[row, 14:16] = sum(own), np.prod(own)
    return config_feat


def with_tiles(graph: TileGraph, config_feat: NDArray[np.float32]) -> TileGraph:
    ones = np.ones(len(config_feat), np.int64)
    return replace(graph, config_feat=config_feat, runtime_ns=ones, runtime_normalizers=ones)


def by_content(graph: Graph) -> NDArray[np.float32]:
    """Return scores of which some are equal, and those of equal configs always."""
    return (config_hashes(graph) % np.uint64(29)).astype(np.float32)


@pytest.mark.parametrize(
    ("error", "rows"), [(2.0, [0, 3]), (0.0, [0, 1])], ids=["unlike the best", "by score"]
)
def test_second_choice_depends_on_the_error(
    error: float, rows: list[int], tile_graph: TileGraph
) -> None:
    graph = with_tiles(tile_graph, tiles_at((64, 64), (64, 63), (63, 64), (1, 64)))
    scores = np.array([0.0, 0.1, 0.15, 0.2], np.float32)
    assert top_k_to_measure(scores, graph, 2, error).tolist() == rows


@pytest.mark.parametrize("n", [1, 5, MAX_CANDIDATES + 50])
@pytest.mark.parametrize("k", [1, 5, MAX_CANDIDATES + 20])
def test_k_distinct_configs_are_chosen(n: int, k: int, tile_graph: TileGraph) -> None:
    tiles = tiles_at(*((1 + i % 20, 1 + i // 20) for i in range(n)))
    graph = with_tiles(tile_graph, np.concatenate([tiles, tiles[:3]]))
    for scores in (np.zeros(len(graph.config_feat)), np.arange(len(graph.config_feat))):
        chosen = top_k_to_measure(scores.astype(np.float32), graph, k)
        assert len(set(config_hashes(graph)[chosen])) == len(chosen) == min(n, k)
        assert chosen[0] == 0


def test_copies_and_row_order_change_no_choice(layout_graph: LayoutGraph) -> None:
    whole = layout_graph.only(np.tile(np.arange(layout_graph.n_configs), 3))
    scores, hashes = by_content(whole), config_hashes(whole)
    chosen = top_k_to_measure(scores, whole, 5)
    assert len(set(hashes[chosen])) == 5
    mixed = np.random.default_rng(0).permutation(whole.n_configs)
    again = top_k_to_measure(scores[mixed], whole.only(mixed), 5)
    assert hashes[mixed][again].tolist() == hashes[chosen].tolist()


def slow_choice(
    scores: NDArray[np.float32], correlation: Floats, error: float, k: int, first: int
) -> list[int]:
    """Each config in turn has the lowest mean over draws of errors and over their opposites."""
    guess = (scores - scores.mean()) / scores.std()
    factor = np.linalg.cholesky(correlation + 1e-6 * np.eye(len(correlation)))
    errors = factor @ normal_draws()[: len(correlation)].astype(np.float64)
    chosen = [first]
    while len(chosen) < k:
        means = {}
        for other in sorted({*range(len(correlation))} - {*chosen}):
            measured = [*chosen, other]
            means[other] = np.mean(
                [
                    (guess[measured, None] + sign * error * errors[measured]).min(axis=0)
                    for sign in (1, -1)
                ]
            )
        chosen.append(min(means, key=lambda config: means[config]))
    return chosen


@pytest.mark.parametrize("seed", range(8))
def test_choices_have_the_lowest_mean_over_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.sort(rng.normal(3, 5, size=40).astype(np.float32))
    places, first = rng.normal(size=(12, 2)), seed % 3
    correlation = np.exp(-np.square(places[:, None] - places).sum(axis=-1) / 2)
    for error in (0.5, 1.0, 2.0):
        found = lowest_expected_minimum(scores, correlation, error, 6, first).tolist()
        assert found == slow_choice(scores, correlation, error, 6, first)


def test_draws_are_normal_and_independent() -> None:
    draws = normal_draws()
    assert draws.shape == (256, 2048)
    assert (draws.mean(), draws.std()) == pytest.approx((0, 1), abs=0.01)
    assert np.abs(np.corrcoef(draws) - np.eye(256)).max() < 0.12


def test_errors_of_tiles_correlate_by_the_logarithms_of_sizes() -> None:
    """A dimension of each tensor; the kernel and the output share one, and one has one size."""
    rng, config_feat = np.random.default_rng(0), np.zeros((9, 24), np.float32)
    sizes = rng.integers(1, 200, size=(9, 3))
    config_feat[:, [5, 8, 21]] = sizes
    config_feat[:, 9], config_feat[:, 13] = 7, sizes[:, 0]
    config_feat[:, [6, 7, 14, 15, 22, 23]] = rng.integers(1, 99, size=(9, 6))  # sums, products
    found = tile_correlation(tile_places(config_feat))
    for i, one in enumerate(sizes):
        for j, other in enumerate(sizes):
            distance = np.square(np.log1p(one) - np.log1p(other)).sum()
            assert found[i, j] == pytest.approx(math.exp(-distance / (2 * 2.0**2)), rel=1e-5)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_layouts_are_chosen_among_the_first_fifth(k: int, layout_graph: LayoutGraph) -> None:
    """Equal scores are in the order of the hashes of their configs."""
    hashes = config_hashes(layout_graph)
    scores = (hashes % np.uint64(17)).astype(np.float32)
    values = layout_graph.configs.rows(np.arange(layout_graph.n_configs))
    distinct = np.unique(hashes, return_index=True)[1]
    rows = np.array(sorted(distinct, key=lambda row: (scores[row], hashes[row])))
    candidates = rows[: max(k, math.ceil(0.2 * len(rows)))]
    differing = np.array(
        [[(values[i] != values[j]).any(axis=1).mean() for j in candidates] for i in candidates]
    )
    correlation = np.exp(-differing / LAYOUT_LENGTH)
    first = first_layouts(layout_graph.configs, candidates)
    expected = slow_choice(scores[rows], correlation, LAYOUT_ERROR, k, first)
    found = top_k_to_measure(scores, layout_graph, k)
    assert found.tolist() == rows[expected].tolist()


LEFT, ROWS, COLUMNS, CUBE = (), (1, 0), (0, 1), (2, 1, 0)


def config(*tensors: tuple[int, ...]) -> NDArray[np.int8]:
    """Return three tensors a node as minor-to-major orders; () is left to the compiler."""
    padded = [[*tensor, *[-1] * (6 - len(tensor))] for tensor in tensors]
    return np.array(padded, np.int8).reshape(-1, 18)


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("all left", "one", "unusual", "most", "as many"), "most"),
        (("one", "all left", "as many", "most"), "as many"),
        (("all left", "unusual"), "all left"),
        (("unusual", "all left", "most"), "unusual"),
    ],
)
def test_first_layouts_name_the_most_usual_ones_if_the_best_asks_for_nothing(
    names: tuple[str, ...], first: str
) -> None:
    of_two_nodes = {
        "all left": (LEFT,) * 6,
        "one": (LEFT, ROWS, *(LEFT,) * 4),
        "most": (CUBE, ROWS, ROWS, LEFT, LEFT, LEFT),
        "as many": (LEFT, LEFT, LEFT, CUBE, ROWS, ROWS),
        "unusual": (CUBE, ROWS, COLUMNS, CUBE, ROWS, ROWS),
    }
    configs = pack_values(np.stack([config(*tensors) for tensors in of_two_nodes.values()]))
    rows = np.array([list(of_two_nodes).index(name) for name in names])
    assert names[first_layouts(configs, rows)] == first


def test_memory_of_many_layouts_is_bounded() -> None:
    size = GraphSize(n_nodes=2_100, n_configurable=500, n_configs=20_000)
    graph = make_layout_graph(sized_graph(size))
    scores = by_content(graph)  # the hashes are made here
    tracemalloc.start()
    try:
        top_k_to_measure(scores, graph, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40e6  # (c, k) int64 configs alone would take 80 MB
