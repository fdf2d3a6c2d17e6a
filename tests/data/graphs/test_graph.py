"""Equal configs are found by content, in order of first occurrence, the same in every process."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from data.graphs.graph import (
    LayoutGraph,
    TileGraph,
    config_hashes,
    distinct_rows,
    hash_rows,
    program_content,
    sample_rows,
)

# The same examples in every run, however slow the machine.
STEADY = settings(deadline=None, derandomize=True)
TABLES = arrays(
    np.int8, st.tuples(st.integers(1, 25), st.integers(1, 3)), elements=st.integers(-1, 1)
)


def reference_groups(table: NDArray[np.generic]) -> tuple[list[int], list[int]]:
    """Group equal rows by comparing each with all distinct ones before it."""
    first: list[int] = []
    group = []
    for row, values in enumerate(table.tolist()):
        same = [place for place, earlier in enumerate(first) if table[earlier].tolist() == values]
        if not same:
            first.append(row)
        group.append(same[0] if same else len(first) - 1)
    return first, group


@STEADY
@given(TABLES)
def test_equal_rows_have_equal_groups(table: NDArray[np.int8]) -> None:
    hashes = hash_rows(table)
    first, group = distinct_rows(hashes)
    want_first, want_group = reference_groups(table)
    assert (first.tolist(), group.tolist()) == (want_first, want_group)
    assert first.dtype == group.dtype == np.int64
    np.testing.assert_array_equal(hash_rows(table[::-1]), hashes[::-1])
    np.testing.assert_array_equal(hash_rows(np.asfortranarray(table)), hashes)


def test_tile_configs_with_minus_zero_are_equal_to_those_with_zero(tile_graph: TileGraph) -> None:
    hashes = config_hashes(tile_graph)
    zero = tile_graph.config_feat == 0
    assert zero.any()
    minus = np.where(zero, np.float32(-0.0), tile_graph.config_feat)
    other = replace(tile_graph, config_feat=minus)
    np.testing.assert_array_equal(config_hashes(other), hashes)


def test_sample_does_not_depend_on_the_order_of_rows(layout_graph: LayoutGraph) -> None:
    c = layout_graph.n_configs
    order = np.random.default_rng(0).permutation(c)
    shuffled = layout_graph.only(order)
    for m in (1, c // 3, c - 1):
        rows, others = sample_rows(layout_graph, m), sample_rows(shuffled, m)
        assert len(rows) == m and (np.diff(rows) > 0).all()
        drawn, again = layout_graph.only(rows), shuffled.only(others)
        measured = [
            sorted(zip(config_hashes(g).tolist(), g.runtime_ns.tolist(), strict=True))
            for g in (drawn, again)
        ]
        assert measured[0] == measured[1]
        assert (config_hashes(drawn) == config_hashes(layout_graph)[rows]).all()
        assert (drawn.configs.rows(np.arange(m)) == layout_graph.configs.rows(rows)).all()
        assert {*rows.tolist()} <= {*sample_rows(layout_graph, m + 1).tolist()}
    assert (sample_rows(layout_graph, c) == np.arange(c)).all()


def test_hashes_are_the_recorded_ones() -> None:
    """A cache of scores keyed by these must stay valid from release to release."""
    table = np.arange(-1, 5, dtype=np.int8).reshape(2, 3)
    assert hash_rows(table).tolist() == [15636849807633975079, 6017607629642293983]


def test_edges_between_equal_nodes_change_the_program(
    layout_graph: LayoutGraph,
) -> None:
    """Two equal parameters and two equal readers: of the same one, or of one each."""
    few = layout_graph.only(np.arange(2))
    nodes = {"node_feat": np.zeros((4, 140), np.float32), "node_opcode": np.array([63, 63, 2, 2])}
    nodes["node_opcode"] = nodes["node_opcode"].astype(np.uint8)
    nodes["node_config_ids"] = np.zeros(0, np.int64)
    shared, apart, turned = (
        program_content(replace(few, **nodes, edge_index=np.array(edges)))
        for edges in ([[2, 0], [3, 0]], [[2, 0], [3, 1]], [[3, 0], [2, 1]])
    )
    assert shared != apart == turned
