"""Further statistics of layout configs, for trees and linear rankers.

Each configurable node has few distinct layout vectors, and many nodes are tied. An entry is a node
with one vector of its column. A slot is a column with one of its vectors. The code computes each
statistic once per entry and sums it over the nodes of each column. The statistic of a config is the
sum of its m slots. Copies depend on two nodes, so they are counted pair by pair.

No statistic depends on the other configs of a file. A train file has up to 100,000 configs,
and a test file 1,000. The rarest layout is much rarer in the larger file.

Shapes: n nodes, k configurable nodes in m columns of at most a vectors, d entries, e edges, r rows,
p pairs, f statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import OPCODES
from data.graphs.packing import N_SYMBOLS
from features.padding import dimension_sizes, minor_codes, minor_to_major
from features.statistics.layout import (
    OPCODE_GROUPS,
    TENSORS,
    TILE_MINOR,
    TILE_SECOND,
    LayoutTables,
    implied_copies,
    output_bytes,
    padding_growth,
)

_SUMMED = (
    *("minor_size_below_8", "minor_size_below_128", "minor_size_whole_tiles", "minor_size_ragged"),
    *("second_size_below_8", "second_size_whole_tiles", "second_size_ragged"),
    *("fixed_operand_copied_bytes", "fixed_operand_copied_edges"),
    *(f"log_{tensor}_padding" for tensor in TENSORS[1:]),
    *("fixed_reader_copied_bytes", "fixed_reader_copied_edges"),
)
LAYOUT_DETAILS = (*_SUMMED, *(f"copied_bytes_to_{group}" for group in OPCODE_GROUPS))
# The summands of each statistic, by entry or by edge of an entry.
Terms = Mapping[str, NDArray[Any]]
# Indices of the statistics that are logarithms of sums.
_LOGARITHMS = [i for i, name in enumerate(_SUMMED) if name.endswith("_padding")]


@dataclass(frozen=True)
class DetailTables:
    """The part of the statistics of one graph that its configs share."""

    summed: NDArray[np.float64]  # (m · a, f) summand of each slot for each summed statistic
    pair_weight: NDArray[np.float32]  # (p, 3) share of all pairs' bytes, by the consumer's group


def layout_details(
    tables: DetailTables,
    shared: LayoutTables,
    codes: NDArray[np.int8],
    places: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Compute the statistics in LAYOUT_DETAILS.

    Args:
        tables: Result of `detail_tables` for the graph.
        shared: Result of `layout_tables` for the graph.
        codes: (r, k, 3) codes of the configs.
        places: (r, m) index of each config's vector in each column.

    Returns:
        (r, f) float32.
    """
    summed = sum_entries(tables.summed, places)
    summed[:, _LOGARITHMS] = np.log(np.maximum(summed[:, _LOGARITHMS], 1e-6))
    copied, _ = implied_copies(shared, codes)
    by_group = copied.astype(np.float32) @ tables.pair_weight  # (r, 3)
    return np.concatenate([summed, by_group], axis=1).astype(np.float32)


def sum_entries(table: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum the rows of a table that the columns of each config name.

    Args:
        table: (m · a, f) summands of all slots.
        places: (r, m) index of each config's vector in each column, less than a.

    Returns:
        (r, f) sums, the product of one-hot configs and the table.
    """
    n_rows, m = places.shape
    entries = (places + np.arange(m) * (len(table) // m)).astype(np.int32).reshape(-1)
    ends = np.arange(0, n_rows * m + 1, m, dtype=np.int32)
    one_hot = csr_array((np.ones(len(entries)), entries, ends), shape=(n_rows, len(table)))
    return np.asarray(one_hot @ table)


def detail_tables(graph: LayoutGraph, shared: LayoutTables) -> DetailTables:
    """Compute the part of the statistics that all configs of a graph share.

    Args:
        graph: Layout graph.
        shared: Result of `layout_tables` for the graph.
    """
    m, a = graph.configs.codebooks.vectors.shape
    entries = _entries(graph, a)
    sums = _sums(entries.slot, _node_terms(graph, entries), m * a)
    for terms in (_operand_terms, _reader_terms):
        entry, summands = terms(graph, entries)
        sums |= _sums(entries.slot[entry], summands, m * a)
    opcode = graph.node_opcode[graph.node_config_ids][shared.sources.consumer]
    weights = [shared.sources.bytes_share * (opcode == OPCODES[name]) for name in OPCODE_GROUPS]
    return DetailTables(
        summed=np.stack([sums[name] for name in _SUMMED], axis=1),
        pair_weight=np.stack(weights, axis=1),
    )


def _sums(slot: NDArray[np.int64], terms: Terms, n_slots: int) -> dict[str, NDArray[Any]]:
    return {name: np.bincount(slot, values, n_slots) for name, values in terms.items()}


@dataclass(frozen=True)
class _Entries:
    """All pairs of a configurable node and a vector of its column, nodes in config order."""

    node: NDArray[np.int64]  # (d,) by config order
    place: NDArray[np.int64]  # (d,) index among the vectors of its column
    slot: NDArray[np.int64]  # (d,) column · a + place
    codes: NDArray[np.int8]  # (d, 3) of the vector
    chosen: NDArray[np.int8]  # (d,) the output's code, the compiler's code if it is left open
    own: NDArray[np.int8]  # (n,) code of the compiler's layout
    position: NDArray[np.int64]  # (n,) place in config order, -1 if not configurable
    bytes_of: NDArray[np.float64]  # (n,) of each node's output

    def at_edges(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pair edges at configurable nodes with the entries of each node, in config order.

        Args:
            nodes: (e,) configurable node of each edge.

        Returns:
            Numbers of edges, and numbers of entries, one per pair.
        """
        counts, at = np.bincount(self.node), self.position[nodes]
        order = np.argsort(at, kind="stable")
        number, place = _numbered(counts[at[order]])
        edge = order[number]
        return edge, (np.cumsum(counts) - counts)[at[edge]] + place


def _entries(graph: LayoutGraph, width: int) -> _Entries:
    codebooks, ids = graph.configs.codebooks, graph.node_config_ids
    node, place = _numbered(codebooks.sizes[codebooks.column_of])
    column = codebooks.column_of[node]
    codes = minor_codes(graph.configs.vectors)[codebooks.vectors[column, place]]
    own = minor_codes(minor_to_major(graph.node_feat))[:, 0]
    chosen = np.where(codes[:, 0] == 0, own[ids][node], codes[:, 0])
    position = np.full(graph.n_nodes, -1)
    position[ids] = np.arange(len(ids))
    bytes_of = output_bytes(graph.node_feat)
    return _Entries(node, place, column * width + place, codes, chosen, own, position, bytes_of)


def _numbered(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    # 0, 1, … repeated `counts` times, and the number of each repeat.
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _node_terms(graph: LayoutGraph, entries: _Entries) -> Terms:
    ids = graph.node_config_ids
    share = _shares(entries.bytes_of[ids])[entries.node]
    # A code contains the minor dimension and the second: 0 if open, 1 for dimension 0, …
    sizes = np.pad(dimension_sizes(graph.node_feat[ids]), ((0, 0), (1, 0)), constant_values=-1)
    minor = sizes[entries.node, entries.chosen // N_SYMBOLS]
    second = sizes[entries.node, entries.chosen % N_SYMBOLS]
    is_large, is_whole = minor >= TILE_MINOR, minor % TILE_MINOR == 0
    second_large, second_whole = second >= TILE_SECOND, second % TILE_SECOND == 0
    return {
        "minor_size_below_8": ((minor >= 0) & (minor < TILE_SECOND)) * share,
        "minor_size_below_128": ((minor >= TILE_SECOND) & ~is_large) * share,
        "minor_size_whole_tiles": (is_large & is_whole) * share,
        "minor_size_ragged": (is_large & ~is_whole) * share,
        "second_size_below_8": ((second >= 0) & ~second_large) * share,
        "second_size_whole_tiles": (second_large & second_whole) * share,
        "second_size_ragged": (second_large & ~second_whole) * share,
    }


def _operand_terms(graph: LayoutGraph, entries: _Entries) -> tuple[NDArray[np.int64], Terms]:
    consumer, operand = graph.edge_index[entries.position[graph.edge_index[:, 0]] >= 0].T
    edge, entry = entries.at_edges(consumer)
    own, wanted = entries.own[operand][edge], entries.codes[entry, 1:]
    is_copied = (wanted != 0).any(axis=1) & (wanted != own[:, None]).all(axis=1)
    moved = entries.bytes_of[operand]
    # A scalar has no layout.
    is_fixed = (entries.position[operand] < 0) & (entries.own[operand] != 0)
    terms = {
        "fixed_operand_copied_bytes": is_copied * _shares(moved * is_fixed)[edge],
        "fixed_operand_copied_edges": is_copied * _shares(is_fixed)[edge],
    }
    growth = padding_growth(dimension_sizes(graph.node_feat[operand]))  # (e, 49)
    codes = np.where(wanted == 0, own[:, None], wanted)
    for tensor, code in zip(TENSORS[1:], codes.T, strict=True):
        terms[f"log_{tensor}_padding"] = growth[edge, code] * _shares(moved)[edge]
    return entry, terms


def _reader_terms(graph: LayoutGraph, entries: _Entries) -> tuple[NDArray[np.int64], Terms]:
    reader, producer = graph.edge_index[entries.position[graph.edge_index[:, 1]] >= 0].T
    edge, entry = entries.at_edges(producer)
    sizes = dimension_sizes(graph.node_feat)
    is_same = (sizes[reader] == sizes[producer]).all(axis=1)
    is_fixed = (entries.position[reader] < 0) & is_same
    is_copied = entries.chosen[entry] != entries.own[reader][edge]
    return entry, {
        "fixed_reader_copied_bytes": is_copied
        * _shares(entries.bytes_of[producer] * is_fixed)[edge],
        "fixed_reader_copied_edges": is_copied * _shares(is_fixed)[edge],
    }


def _shares(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values / max(values.sum(), 1.0))
