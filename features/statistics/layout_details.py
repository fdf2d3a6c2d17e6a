"""Further statistics of layout configs, for trees and linear rankers.

A config takes few distinct layout vectors per configurable node, and many nodes are tied. So a
statistic is worked out once per (node, vector), in small polars tables; summed over the nodes of
each column; and a config's statistic is the sum of the m entries that its columns name. What
depends on two nodes at once (copies between them) is counted pair by pair.

n nodes, k configurable ones in m columns of at most a vectors, r rows of c configs, p pairs, f
statistics.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from data.graphs.distinct import distinct_rows
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import OPCODES
from data.graphs.node_layouts import dimension_sizes, minor_to_major
from features.layout_codes import N_CODES, N_SYMBOLS, minor_codes
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

CHUNK_CONFIGS = 4096  # looked at at once
_PLACE = ["column", "place"]

_SUMMED = (
    *("minor_size_below_8", "minor_size_below_128", "minor_size_whole_tiles", "minor_size_ragged"),
    *("second_size_below_8", "second_size_whole_tiles", "second_size_ragged"),
    *("fixed_operand_copied_bytes", "fixed_operand_copied_edges"),
    *(f"log_{tensor}_padding" for tensor in TENSORS[1:]),
    *("fixed_reader_copied_bytes", "fixed_reader_copied_edges"),
    *("rarity_mean", "rarity_by_bytes", "usual_nodes"),
)
LAYOUT_DETAILS = (
    *_SUMMED,
    *("rarity_largest", "log_occurrences"),
    *(f"copied_bytes_to_{group}" for group in OPCODE_GROUPS),
)
_LOGARITHMS = [i for i, name in enumerate(_SUMMED) if name.endswith("_padding")]


@dataclass(frozen=True)
class DetailTables:
    """What the statistics of one graph share between configs.

    Attributes:
        summed: (m · a, f) float64 what a column adds to each summed statistic, by vector.
        rarity: (m, a) float64 −log of how common each vector is in its column.
        occurrences: (c,) int64 how often each config occurs.
        pair_weight: (p, 3) float32 share of all pairs' bytes, by the consumer's opcode group.
    """

    summed: NDArray[np.float64]
    rarity: NDArray[np.float64]
    occurrences: NDArray[np.int64]
    pair_weight: NDArray[np.float32]


def layout_details(
    tables: DetailTables,
    shared: LayoutTables,
    codes: NDArray[np.int8],
    places: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Compute the statistics of some configs.

    Args:
        codes: (r, k, 3) of each node's layouts.
        places: (r, m) which of its column's vectors each column has.

    Returns:
        (r, f) float32, columns as in LAYOUT_DETAILS.
    """
    summed = sum_entries(tables.summed, places)
    summed[:, _LOGARITHMS] = np.log(np.maximum(summed[:, _LOGARITHMS], 1e-6))
    starts = np.arange(places.shape[1]) * tables.rarity.shape[1]
    largest = tables.rarity.reshape(-1).take(places + starts).max(axis=1)
    others = np.stack([largest, np.log(tables.occurrences[rows])], axis=1)
    copied, _ = implied_copies(shared, codes)
    by_group = copied.astype(np.float32) @ tables.pair_weight  # (r, 3)
    return np.concatenate([summed, others, by_group], axis=1).astype(np.float32)


def sum_entries(table: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum the entries that each config's columns name: one-hot configs times the table.

    Args:
        table: (m · a, f).
        places: (r, m) below a.

    Returns:
        (r, f) float64.
    """
    n_rows, m = places.shape
    entries = (places + np.arange(m) * (len(table) // m)).astype(np.int32).reshape(-1)
    ends = np.arange(0, n_rows * m + 1, m, dtype=np.int32)
    ones = np.ones(len(entries))
    one_hot = csr_array((ones, entries, ends), shape=(n_rows, len(table)))
    return np.asarray(one_hot @ table)


def detail_tables(graph: LayoutGraph, shared: LayoutTables) -> DetailTables:
    """Work out what all configs of a graph share."""
    sources = shared.sources
    bytes_of = output_bytes(graph.node_feat)
    default = minor_codes(minor_to_major(graph.node_feat))[:, 0]  # (n,) each node's own layout
    first, group = distinct_rows(graph.configs.content_hashes())
    rarity = vector_rarity(graph, first[first < graph.n_counted])
    entries = _entries(graph, bytes_of, default, rarity)
    parts = [
        _by_place(entries, _node_terms(len(graph.node_config_ids))),
        _operand_sums(entries, graph, bytes_of, default),
        _reader_sums(entries, graph, bytes_of, default),
    ]
    whole = reduce(lambda left, right: left.join(right, on=_PLACE, how="left"), parts)
    sums = whole.with_columns(pl.selectors.float().fill_null(0.0)).collect()
    table = np.zeros((rarity.size, len(_SUMMED)))
    places = sums["column"] * rarity.shape[1] + sums["place"]
    table[places.to_numpy()] = sums.select(_SUMMED).to_numpy()
    opcode = graph.node_opcode[graph.node_config_ids][sources.consumer]
    weights = [sources.bytes_share * (opcode == OPCODES[name]) for name in OPCODE_GROUPS]
    return DetailTables(
        summed=table,
        rarity=rarity,
        occurrences=np.bincount(group[: graph.n_counted], minlength=len(first)).clip(1)[group],
        pair_weight=np.stack(weights, axis=1),
    )


def vector_rarity(graph: LayoutGraph, first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return −log of the share of distinct configs with each vector, of one at least; (m, a).

    Args:
        first: (d,) a row of each distinct config.
    """
    shape = graph.configs.alphabets.vectors.shape
    starts = np.arange(shape[0]) * shape[1]
    counts = np.zeros(shape[0] * shape[1], dtype=np.int64)
    for part in np.array_split(first, -(-len(first) // CHUNK_CONFIGS)):
        places = graph.configs.places(part) + starts
        counts += np.bincount(places.reshape(-1), minlength=len(counts))
    return -np.log(np.maximum(counts, 1) / len(first)).reshape(shape)


def _by_place(rows: pl.LazyFrame, terms: dict[str, pl.Expr]) -> pl.LazyFrame:
    sums = [term.cast(pl.Float64).sum().alias(name) for name, term in terms.items()]
    return rows.group_by(_PLACE, maintain_order=True).agg(sums)


def _entries(
    graph: LayoutGraph,
    bytes_of: NDArray[np.float64],
    default: NDArray[np.int8],
    rarity: NDArray[np.float64],
) -> pl.LazyFrame:
    """Tabulate (node, place), the vector's codes and the node's facts; nodes by config order."""
    columns, ids = graph.configs.alphabets, graph.node_config_ids
    n_places = columns.sizes[columns.column_of]
    node = np.repeat(np.arange(len(ids)), n_places)
    place = np.arange(len(node)) - np.repeat(np.cumsum(n_places) - n_places, n_places)
    column = columns.column_of[node]
    codes = minor_codes(graph.configs.vectors)[columns.vectors[column, place]].astype(np.int64)
    is_used = np.arange(rarity.shape[1]) < columns.sizes[:, None]
    usual = np.where(is_used, rarity, np.inf).argmin(axis=1)
    own = default[ids].astype(np.int64)[node]
    chosen = np.where(codes[:, 0] == 0, own, codes[:, 0])
    sizes = np.pad(dimension_sizes(graph.node_feat[ids]), ((0, 0), (1, 0)), constant_values=-1)
    return pl.LazyFrame(
        {
            "node": node,
            "column": column,
            "place": place,
            **{tensor: codes[:, i] for i, tensor in enumerate(TENSORS)},
            "rarity": rarity[column, place],
            "is_usual": place == usual[column],
            "share": (bytes_of[ids] / max(bytes_of[ids].sum(), 1.0))[node],
            "chosen": chosen,
            "minor_size": sizes[node, chosen // N_SYMBOLS],
            "second_size": sizes[node, chosen % N_SYMBOLS],
        }
    )


def _node_terms(n_configurable: int) -> dict[str, pl.Expr]:
    each = 1.0 / n_configurable
    minor, second, share = pl.col("minor_size"), pl.col("second_size"), pl.col("share")
    is_large, is_whole = minor >= TILE_MINOR, minor % TILE_MINOR == 0
    second_large, second_whole = second >= TILE_SECOND, second % TILE_SECOND == 0
    return {
        "minor_size_below_8": minor.is_between(0, TILE_SECOND - 1) * share,
        "minor_size_below_128": minor.is_between(TILE_SECOND, TILE_MINOR - 1) * share,
        "minor_size_whole_tiles": (is_large & is_whole) * share,
        "minor_size_ragged": (is_large & ~is_whole) * share,
        "second_size_below_8": second.is_between(0, TILE_SECOND - 1) * share,
        "second_size_whole_tiles": (second_large & second_whole) * share,
        "second_size_ragged": (second_large & ~second_whole) * share,
        "rarity_mean": pl.col("rarity") * each,
        "rarity_by_bytes": pl.col("rarity") * share,
        "usual_nodes": pl.col("is_usual") * each,
    }


def _operand_sums(
    entries: pl.LazyFrame,
    graph: LayoutGraph,
    bytes_of: NDArray[np.float64],
    default: NDArray[np.int8],
) -> pl.LazyFrame:
    position = config_position(graph)
    consumer, operand = graph.edge_index[position[graph.edge_index[:, 0]] >= 0].T
    is_fixed = (position[operand] < 0) & (default[operand] != 0)  # a scalar has no layout
    operands = pl.LazyFrame(
        {
            "node": position[consumer],
            "operand": operand,
            "operand_own": default[operand].astype(np.int64),
            "operand_share": bytes_of[operand] / max(bytes_of[operand].sum(), 1.0),
            **_fixed_shares(is_fixed, bytes_of[operand]),
        }
    )
    rows = entries.join(operands, on="node", maintain_order="left_right")
    wanted = [pl.col(tensor) for tensor in TENSORS[1:]]
    is_named = reduce(pl.Expr.or_, [code != 0 for code in wanted])
    is_met = reduce(pl.Expr.or_, [code == pl.col("operand_own") for code in wanted])
    is_copied = is_named & ~is_met
    terms = {
        "fixed_operand_copied_bytes": is_copied * pl.col("fixed_share"),
        "fixed_operand_copied_edges": is_copied * pl.col("fixed_each"),
    }
    growth = _growth_frame(graph, np.unique(operand))
    for tensor in TENSORS[1:]:
        code = pl.when(pl.col(tensor) == 0).then("operand_own").otherwise(tensor)
        rows = rows.with_columns(code=code).join(
            growth.rename({"growth": f"{tensor}_growth"}),
            on=["operand", "code"],
            maintain_order="left",
        )
        terms[f"log_{tensor}_padding"] = pl.col(f"{tensor}_growth") * pl.col("operand_share")
    return _by_place(rows, terms)


def _reader_sums(
    entries: pl.LazyFrame,
    graph: LayoutGraph,
    bytes_of: NDArray[np.float64],
    default: NDArray[np.int8],
) -> pl.LazyFrame:
    position = config_position(graph)
    reader, producer = graph.edge_index[position[graph.edge_index[:, 1]] >= 0].T
    sizes = dimension_sizes(graph.node_feat)
    is_fixed = (position[reader] < 0) & (sizes[reader] == sizes[producer]).all(axis=1)
    readers = pl.LazyFrame(
        {
            "node": position[producer],
            "reader_own": default[reader].astype(np.int64),
            **_fixed_shares(is_fixed, bytes_of[producer]),
        }
    )
    rows = entries.join(readers, on="node", maintain_order="left_right")
    is_copied = pl.col("chosen") != pl.col("reader_own")
    terms = {
        "fixed_reader_copied_bytes": is_copied * pl.col("fixed_share"),
        "fixed_reader_copied_edges": is_copied * pl.col("fixed_each"),
    }
    return _by_place(rows, terms)


def config_position(graph: LayoutGraph) -> NDArray[np.int64]:
    """Return each node's place in config order, -1 where it is not configurable; (n,) int64."""
    position = np.full(graph.n_nodes, -1)
    position[graph.node_config_ids] = np.arange(len(graph.node_config_ids))
    return position


def _fixed_shares(
    is_fixed: NDArray[np.bool_], moved: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Weigh edges (e,) to nodes that are not configurable: by bytes, and alike; sums of 1."""
    fixed_bytes = moved * is_fixed
    return {
        "fixed_share": fixed_bytes / max(fixed_bytes.sum(), 1.0),
        "fixed_each": is_fixed / max(is_fixed.sum(), 1),
    }


def _growth_frame(graph: LayoutGraph, nodes: NDArray[np.int64]) -> pl.LazyFrame:
    growth = padding_growth(dimension_sizes(graph.node_feat[nodes]))
    return pl.LazyFrame(
        {
            "operand": np.repeat(nodes, N_CODES),
            "code": np.tile(np.arange(N_CODES), len(nodes)),
            "growth": growth.reshape(-1),
        }
    )
