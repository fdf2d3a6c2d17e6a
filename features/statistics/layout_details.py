"""Further statistics of layout configs, for trees and linear rankers.

A config takes few distinct layout vectors per configurable node, and many nodes are tied. So a
statistic is worked out once per (node, vector), in small polars tables; summed over the nodes of
each column; and a config's statistic is the sum of the m entries that its columns name. What
depends on two nodes at once (copies between them) is counted pair by pair.

r rows of c configs, k configurable nodes in m columns of at most a vectors, p pairs, f statistics.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from data.graphs.configs import distinct_rows
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import OPCODES
from data.graphs.node_layouts import minor_to_major
from features.layout_codes import minor_codes
from features.statistics.layout import OPCODE_GROUPS, TENSORS, implied_copies, output_bytes
from features.statistics.layout_entries import MINOR_SIZES, SECOND_SIZES, SYMBOLS, column_entries
from features.statistics.layout_paths import SourceEdges

CHUNK_CONFIGS = 4096  # looked at at once


def layout_formulas(prefix: str, summed: str) -> dict[str, str]:
    """Return the formulas of sums over nodes with each minor dimension, by tensor and opcode.

    Args:
        summed: what a node adds.
    """
    minors = {
        f"{prefix}{tensor}_minor_{symbol}_{group}": (
            f"Σ {summed} over {group} nodes whose {tensor} layout "
            + ("is left open" if symbol == "default" else f"has minor dimension {symbol}")
        )
        for tensor in TENSORS
        for symbol in SYMBOLS
        for group in OPCODE_GROUPS
    }
    return minors | {
        f"{prefix}output_as_default_{group}": f"Σ {summed} over {group} nodes that put out the "
        "layout the compiler had"
        for group in OPCODE_GROUPS
    }


# name -> formula. k nodes; s = a node's share of the configurable bytes; "named" = not left open.
_NODE_STATISTICS = {
    **layout_formulas("count_", "1/k"),
    **{
        f"minor_size_{name}": f"Σ s over nodes whose chosen minor dimension has {size} elements"
        for name, size in MINOR_SIZES.items()
    },
    **{
        f"second_size_{name}": f"Σ s over nodes whose second minor dimension has {size} elements"
        for name, size in SECOND_SIZES.items()
    },
}
_OPERAND_STATISTICS = {
    "fixed_operand_copied_bytes": "Σ bytes of operands that are no scalars, not configurable, and "
    "have none of the layouts that the node names for its operands, / bytes of all operands that "
    "are no scalars and not configurable",
    "fixed_operand_copied_edges": "the same, counting operands",
    **{
        f"log_{tensor}_padding": "log Σ b · growth, b an operand's share of the bytes of all "
        f"operands, growth its padding to 8 × 128 under the {tensor} layout (its own where open)"
        for tensor in TENSORS[1:]
    },
}
_READER_STATISTICS = {
    "fixed_reader_copied_bytes": "Σ bytes of the node over readers of its shape that are not "
    "configurable and whose own layout differs from the chosen one, / all such bytes",
    "fixed_reader_copied_edges": "the same, counting readers",
}
_RARITY_STATISTICS = {
    "rarity_mean": "mean over nodes of −log(share of the graph's distinct configs with the same "
    "layout vector at the node)",
    "rarity_by_bytes": "the same, nodes weighted by s",
    "usual_nodes": "share of nodes with the vector that most of the graph's distinct configs have",
}
_SUMMED = _NODE_STATISTICS | _OPERAND_STATISTICS | _READER_STATISTICS | _RARITY_STATISTICS
LAYOUT_DETAILS = {
    **_SUMMED,
    "rarity_largest": "largest −log share over nodes",
    "log_occurrences": "log of how often the config occurs in the graph",
    **{
        f"copied_bytes_to_{group}": f"copied_bytes_share, of consumers that are a {group}"
        for group in OPCODE_GROUPS
    },
}
_LOGARITHMS = [i for i, name in enumerate(_SUMMED) if name.endswith("_padding")]


@dataclass(frozen=True)
class DetailTables:
    """What the statistics of one graph share between configs.

    Attributes:
        summed: (m · a, f) float64 what a column adds to each summed statistic, by vector.
        rarity: (m, a) float64 −log of how common each vector is in its column.
        occurrences: (c,) int64 how often each config occurs.
        default_code: (k,) int8 layout of each configurable node's output as the compiler had it.
        sources: pairs of configurable nodes.
        pair_weight: (p, 3) float32 share of all pairs' bytes, by the consumer's opcode group.
    """

    summed: NDArray[np.float64]
    rarity: NDArray[np.float64]
    occurrences: NDArray[np.int64]
    default_code: NDArray[np.int8]
    sources: SourceEdges
    pair_weight: NDArray[np.float32]


def layout_details(
    tables: DetailTables,
    codes: NDArray[np.int8],
    places: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Compute the statistics of some configs.

    Args:
        tables: what the graph's configs share.
        codes: (r, k, 3) of each node's layouts.
        places: (r, m) which of its column's vectors each column has.
        rows: (r,) the configs' rows.

    Returns:
        (r, f) float32, columns as in LAYOUT_DETAILS.
    """
    summed = sum_entries(tables.summed, places)
    summed[:, _LOGARITHMS] = np.log(np.maximum(summed[:, _LOGARITHMS], 1e-6))
    starts = np.arange(places.shape[1]) * tables.rarity.shape[1]
    largest = tables.rarity.reshape(-1).take(places + starts).max(axis=1)
    others = np.stack([largest, np.log(tables.occurrences[rows])], axis=1)
    chosen = np.where(codes[:, :, 0] == 0, tables.default_code, codes[:, :, 0])
    copied, _ = implied_copies(tables.sources, codes, chosen)
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


def detail_tables(graph: LayoutGraph, sources: SourceEdges) -> DetailTables:
    """Work out what all configs of a graph share, from `layout_sources` of the graph."""
    ids = graph.node_config_ids
    bytes_of = output_bytes(graph.node_feat)
    default = minor_codes(minor_to_major(graph.node_feat))[:, 0]
    first, group = distinct_rows(graph.configs.content_hashes())
    rarity = vector_rarity(graph, first)
    entries = column_entries(graph, bytes_of, default, rarity).collect()
    table = np.zeros((rarity.size, len(_SUMMED)))
    places = entries["column"] * rarity.shape[1] + entries["place"]
    table[places.to_numpy()] = entries.select(list(_SUMMED)).to_numpy()
    opcode = graph.node_opcode[ids][sources.consumer]
    weights = [sources.bytes_share * (opcode == OPCODES[name]) for name in OPCODE_GROUPS]
    return DetailTables(
        summed=table,
        rarity=rarity,
        occurrences=np.bincount(group)[group],
        default_code=default[ids],
        sources=sources,
        pair_weight=np.stack(weights, axis=1),
    )


def vector_rarity(graph: LayoutGraph, first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return −log of the share of distinct configs that have each vector; (m, a), else 0.

    Args:
        first: (d,) a row of each distinct config.
    """
    shape = graph.configs.alphabets.vectors.shape
    starts = np.arange(shape[0]) * shape[1]
    counts = np.zeros(shape[0] * shape[1], dtype=np.int64)
    for part in np.array_split(first, -(-len(first) // CHUNK_CONFIGS)):
        places = graph.configs.places(part) + starts
        counts += np.bincount(places.reshape(-1), minlength=len(counts))
    return -np.log(np.maximum(counts, 1) / len(first)).reshape(shape) * (counts > 0).reshape(shape)
