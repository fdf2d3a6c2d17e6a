"""The configs to measure: against the definition, in any order of rows, and in bounded memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, config_hashes
from data.graphs.packing import pack_values
from data.synthetic.graphs import GraphSize, make_layout_graph, sized_graph
from data.tree import find_graphs
from ensembles.picks import first_layouts, top_k_to_measure
from ensembles.score_errors import MAX_CANDIDATES, layout_distances


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


def test_layout_distance_is_the_share_of_nodes_that_differ(tiny_tree: Path) -> None:
    """Also if nodes are tied, and some more than others."""
    n_unlike = 0
    for file in find_graphs(tiny_tree, splits=("train",)):
        if file.collection.kind == "layout":
            graph = read_graph(file)
            assert isinstance(graph, LayoutGraph)
            rows = np.arange(0, graph.n_configs, 3)
            values = graph.configs.rows(rows)  # (r, k, 18)
            differing = (values[:, None] != values).any(axis=-1).mean(axis=-1)
            distances = layout_distances(graph.configs, rows)
            np.testing.assert_allclose(distances, differing, rtol=1e-12)
            n_unlike += len(set(np.bincount(graph.configs.codebooks.column_of))) > 1
    assert n_unlike


def test_copies_and_row_order_change_no_choice(layout_graph: LayoutGraph) -> None:
    whole = layout_graph.only(np.tile(np.arange(layout_graph.n_configs), 3))
    scores, hashes = by_content(whole), config_hashes(whole)
    chosen = top_k_to_measure(scores, whole, 5)
    assert len(set(hashes[chosen])) == 5
    mixed = np.random.default_rng(0).permutation(whole.n_configs)
    again = top_k_to_measure(scores[mixed], whole.only(mixed), 5)
    assert hashes[mixed][again].tolist() == hashes[chosen].tolist()


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
