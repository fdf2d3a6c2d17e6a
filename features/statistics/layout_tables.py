"""Hand-crafted statistics of layout configs, for rankers that see one row per config.

Each statistic is a share between 0 and 1, or a logarithm, so one model serves graphs of every size.
No statistic depends on the other configs of a file. A train file has up to 100,000 configs, and a
test file 1,000. The rarest layout is much rarer in the larger file.

The nodes of a stored column have the same layouts in every config, and there are few columns. So a
graph has two tables, which do not grow with its configs:

- A slot is a column with one of its vectors. A row of the first table has what the column's nodes
  add to each statistic. The statistic of a config is the sum over its m slots.
- Copies depend on two nodes. The second table has a row for each pair of columns that an output
  connects, with the bytes of all connected nodes. A config implies these copies or does not.

Shapes: n nodes, k configurable nodes in m columns of at most a vectors, e edges, r rows, p pairs of
columns, f statistics.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import OPCODES
from data.graphs.packing import N_CODES, N_SYMBOLS
from features.padding import dimension_sizes, minor_codes, minor_to_major
from features.statistics.layout import (
    OPCODE_GROUPS,
    ROLES,
    ROLES_OF,
    TENSORS,
    TILE_MINOR,
    TILE_SECOND,
    config_positions,
    layout_sources,
    output_bytes,
    padding_growth,
    tensor_roles,
)

_ROLES = tuple(
    (tensor, role, group)
    for tensor, role, group in product(range(len(TENSORS)), range(len(ROLES)), OPCODE_GROUPS)
    if role in ROLES_OF[group][tensor]
)
_GRAPH_STATISTICS = (
    *("log_nodes", "log_configurable", "log_bytes"),
    *(f"share_{group}" for group in OPCODE_GROUPS),
)
# Statistics that differ between configs. Networks read them.
CONFIG_STATISTICS = (
    *(f"{TENSORS[tensor]}_{ROLES[role]}_{group}" for tensor, role, group in _ROLES),
    *("open_nodes", "all_open"),
    *(f"output_as_default_{group}" for group in OPCODE_GROUPS),
    *("log_padding", "copied_bytes_share", "copied_edges_share", "open_edges_share"),
)
# docs/reference/statistics.md has the formulas of all statistics.
LAYOUT_STATISTICS = (*CONFIG_STATISTICS, *_GRAPH_STATISTICS)
LAYOUT_DETAILS = (
    *("minor_size_below_8", "minor_size_below_128", "minor_size_whole_tiles", "minor_size_ragged"),
    *("second_size_below_8", "second_size_whole_tiles", "second_size_ragged"),
    *("fixed_operand_copied_bytes", "fixed_operand_copied_edges"),
    *(f"log_{tensor}_padding" for tensor in TENSORS[1:]),
    *("fixed_reader_copied_bytes", "fixed_reader_copied_edges"),
    *(f"copied_bytes_to_{group}" for group in OPCODE_GROUPS),
)
_COLUMNS = (*CONFIG_STATISTICS, *LAYOUT_DETAILS)
_OPEN_NODES, _ALL_OPEN = _COLUMNS.index("open_nodes"), _COLUMNS.index("all_open")
_LOGARITHMS = [i for i, name in enumerate(_COLUMNS) if name.endswith("_padding")]
# Statistics of pairs, in the order of LayoutTables.weights.
_COPIES = [i for i, name in enumerate(_COLUMNS) if name.startswith("copied_")]
# The share of open nodes is a sum of fractions. No graph has as many nodes as this allows.
_ALL_SHARE = 1 - 1e-6
ANY_LAYOUT = (1 << N_CODES) - 1

Values = NDArray[np.float64]
# The rows of configs' slots, for NumPy's arrays or torch's tensors.
Array = Any


class LayoutTables(NamedTuple):
    """Everything about one graph that the statistics of its configs read: arrays, or tensors.

    A layout is one bit of an int64. Its code of `minor_codes` is the number of the bit.
    """

    slots: Array  # (m·a, f) float64 summands of each slot, 0 for statistics that are no sums
    starts: Array  # (m,) int64 first slot of each column
    outputs: Array  # (m·a,) int64 layout of the output, 0 if it is open
    operands: Array  # (m·a,) int64 layouts of an operand that need no copy
    consumer: Array  # (p,) int64 column
    producer: Array  # (p,) int64 column
    default: Array  # (p,) int64 layout of the producer's output if it is open
    weights: Array  # (w, p) float64 share of the pair in each statistic of copies


def layout_rows(tables: LayoutTables, places: Array, xp: ModuleType = np) -> Array:
    """Compute the statistics of configs.

    Args:
        tables: Result of `layout_tables` for the graph.
        places: (r, m) int64 index of each config's vector in each column.
        xp: Module of the arrays: numpy, or torch on any device. The operations do not depend on
            values, so a CUDA graph can record them.

    Returns:
        (r, f) float64: CONFIG_STATISTICS, and LAYOUT_DETAILS if the tables have them.
    """
    slots = places + tables.starts
    rows = _sum_slots(tables.slots, slots) if xp is np else tables.slots[slots].sum(1)
    outputs = tables.outputs[slots][:, tables.producer]  # (r, p)
    outputs = outputs | (outputs == 0) * tables.default
    is_copied = (tables.operands[slots][:, tables.consumer] & outputs) == 0
    for column, weight in zip(_COPIES, tables.weights, strict=False):
        rows[:, column] = (is_copied * weight).sum(1)
    for column in _LOGARITHMS:
        if column < rows.shape[1]:
            rows[:, column] = xp.log(rows[:, column].clip(1e-6))
    rows[:, _ALL_OPEN] = rows[:, _OPEN_NODES] > _ALL_SHARE
    return rows


def _sum_slots(table: Values, slots: NDArray[np.int64]) -> Values:
    # The sum of the rows that `slots` name, 2 to 3 times as fast as a copy of these rows.
    n_rows, m = slots.shape
    ends = np.arange(0, n_rows * m + 1, m, dtype=np.int32)
    entries = np.ones(slots.size), slots.reshape(-1).astype(np.int32), ends
    return np.asarray(csr_array(entries, shape=(n_rows, len(table))) @ table)


def layout_tables(graph: LayoutGraph, *, with_details: bool = False) -> LayoutTables:
    """Compute the part of the statistics that all configs of a graph share.

    The cost grows with nodes, edges and slots.
    """
    columns = _columns_of(graph)
    consumer, producer = layout_sources(graph)
    n_pairs = max(1, len(consumer))
    open_operands = (columns.codes[..., 1:] == 0).all(axis=2)  # (m, a)
    sums = _role_sums(columns) | _node_sums(columns)
    edges = np.bincount(columns.column_of[consumer], minlength=len(open_operands)) / n_pairs
    sums["open_edges_share"] = open_operands * edges[:, None]
    if with_details:
        sums |= _size_sums(columns) | _operand_sums(columns) | _reader_sums(columns)
    names = _COLUMNS if with_details else CONFIG_STATISTICS
    m, a = open_operands.shape
    slots = np.zeros((m, a, len(names)))
    for number, name in enumerate(names):
        slots[..., number] = sums.get(name, 0)
    key = (columns.column_of[consumer] * m + columns.column_of[producer]) * N_CODES
    pair, number_of = np.unique(key + columns.defaults[columns.ids][producer], return_inverse=True)
    bytes_share = _shares(columns.bytes_of[columns.ids][producer])
    opcode = graph.node_opcode[columns.ids][consumer]
    by_group = [bytes_share * (opcode == OPCODES[name]) for name in OPCODE_GROUPS]
    equal_share = np.full(len(bytes_share), 1 / n_pairs)
    weights = [bytes_share, equal_share, *(by_group if with_details else ())]
    return LayoutTables(
        slots=slots.reshape(m * a, -1),
        starts=np.arange(m) * a,
        outputs=_bits(columns.codes[..., 0]).reshape(-1),
        operands=columns.operand_bits.reshape(-1),
        consumer=pair // (N_CODES * m),
        producer=pair // N_CODES % m,
        # A scalar has layout 0, which no operand accepts by name.
        default=1 << pair % N_CODES,
        weights=np.stack([np.bincount(number_of, weight, len(pair)) for weight in weights]),
    )


def graph_statistics(graph: LayoutGraph) -> Values:
    """Return the statistics that are equal for all configs, in the order of LAYOUT_STATISTICS."""
    ids, opcode = graph.node_config_ids, graph.node_opcode[graph.node_config_ids]
    logs = np.log1p([graph.n_nodes, len(ids), output_bytes(graph.node_feat).sum()])
    return np.array([*logs, *((opcode == OPCODES[name]).mean() for name in OPCODE_GROUPS)])


@dataclass(frozen=True)
class _Columns:
    """The nodes of a graph, and the layout codes of its columns."""

    graph: LayoutGraph
    column_of: NDArray[np.int64]  # (k,) column of each configurable node
    codes: NDArray[np.int64]  # (m, a, 3) of each slot, by tensor
    defaults: NDArray[np.int64]  # (n,) code of the compiler's layout
    position: NDArray[np.int64]  # (n,) place in config order, -1 if not configurable
    bytes_of: Values  # (n,) of each node's output

    @property
    def ids(self) -> NDArray[np.int64]:
        return self.graph.node_config_ids

    @cached_property
    def all_nodes(self) -> csr_array:
        """Return the matrix (m, k) that sums over all nodes of each column."""
        return self.members(np.arange(len(self.ids)))

    @property
    def outputs(self) -> NDArray[np.int64]:
        """Return the output's layout of each node by code, (k, 49): an open one is its default."""
        return _where_open(self.defaults[self.ids])

    @property
    def operand_bits(self) -> NDArray[np.int64]:
        """Return the bits of the layouts that each slot's operands accept, (m, a)."""
        operands = self.codes[..., 1:]
        bits = np.bitwise_or.reduce(_bits(operands), axis=2)
        return np.where((operands == 0).all(axis=2), ANY_LAYOUT, bits)

    def members(self, nodes: NDArray[np.int64]) -> csr_array:
        """Return the matrix (m, i) that sums over places in config order (i,) of each column."""
        entries = np.ones(len(nodes)), self.column_of[nodes], np.arange(len(nodes) + 1)
        return csr_array(entries, shape=(len(nodes), len(self.codes))).T

    def by_code(self, members: csr_array, terms: NDArray[Any], tensor: int = 0) -> Values:
        """Sum terms by layout code over nodes, for the code that each slot has.

        Args:
            members: Result of `members` for the nodes.
            terms: (i, 49) terms of each node.
            tensor: Number of the tensor.

        Returns:
            (m, a).
        """
        return np.take_along_axis(members @ terms, self.codes[..., tensor], axis=1)


def _columns_of(graph: LayoutGraph) -> _Columns:
    codebooks = graph.configs.codebooks
    codes = minor_codes(graph.configs.vectors)[codebooks.vectors].astype(np.int64)
    defaults = minor_codes(minor_to_major(graph.node_feat))[:, 0].astype(np.int64)
    position, bytes_of = config_positions(graph), output_bytes(graph.node_feat)
    return _Columns(graph, codebooks.column_of, codes, defaults, position, bytes_of)


def _bits(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(codes == 0, 0, 1 << codes)


def _where_open(defaults: NDArray[np.int64]) -> NDArray[np.int64]:
    # (i, 49) layout by code of tensors with these defaults (i,).
    codes = np.arange(N_CODES)
    return np.where(codes == 0, defaults[:, None], codes)


def _shares(values: NDArray[Any]) -> Values:
    return np.asarray(values / max(values.sum(), 1.0))


def _role_sums(columns: _Columns) -> dict[str, Values]:
    graph, opcode = columns.graph, columns.graph.node_opcode[columns.ids]
    role, bytes_share = tensor_roles(graph, columns.bytes_of)
    terms = [
        (role[:, tensor] == number) * (bytes_share[:, tensor] * (opcode == OPCODES[group]))[:, None]
        for tensor, number, group in _ROLES
    ]
    by_symbol = np.split(columns.all_nodes @ np.concatenate(terms, axis=1), len(_ROLES), axis=1)
    minor = columns.codes // N_SYMBOLS
    sums = {}
    for (tensor, number, group), by_minor in zip(_ROLES, by_symbol, strict=True):
        name = f"{TENSORS[tensor]}_{ROLES[number]}_{group}"
        sums[name] = np.take_along_axis(by_minor, minor[..., tensor], axis=1)
    return sums


def _node_sums(columns: _Columns) -> dict[str, Values]:
    ids, opcode = columns.ids, columns.graph.node_opcode[columns.ids]
    share = _shares(columns.bytes_of[ids])
    n_nodes = np.bincount(columns.column_of, minlength=len(columns.codes))
    is_default = columns.outputs == columns.defaults[ids][:, None]
    growth = padding_growth(dimension_sizes(columns.graph.node_feat[ids]))
    padding = np.take_along_axis(growth, columns.outputs, axis=1) * share[:, None]
    sums = {
        "open_nodes": (columns.codes == 0).all(axis=2) * (n_nodes / len(ids))[:, None],
        "log_padding": columns.by_code(columns.all_nodes, padding),
    }
    for group in OPCODE_GROUPS:
        weight = share * (opcode == OPCODES[group])
        sums[f"output_as_default_{group}"] = columns.by_code(
            columns.all_nodes, is_default * weight[:, None]
        )
    return sums


def _size_sums(columns: _Columns) -> dict[str, Values]:
    ids = columns.ids
    share = _shares(columns.bytes_of[ids])[:, None]
    # A code contains the minor dimension and the second: 0 if open, 1 for dimension 0, …
    sizes = dimension_sizes(columns.graph.node_feat[ids])
    sizes = np.pad(sizes, ((0, 0), (1, 0)), constant_values=-1)
    minor = np.take_along_axis(sizes, columns.outputs // N_SYMBOLS, axis=1)  # (k, 49)
    second = np.take_along_axis(sizes, columns.outputs % N_SYMBOLS, axis=1)
    is_large, is_whole = minor >= TILE_MINOR, minor % TILE_MINOR == 0
    second_large, second_whole = second >= TILE_SECOND, second % TILE_SECOND == 0
    terms = {
        "minor_size_below_8": (minor >= 0) & (minor < TILE_SECOND),
        "minor_size_below_128": (minor >= TILE_SECOND) & ~is_large,
        "minor_size_whole_tiles": is_large & is_whole,
        "minor_size_ragged": is_large & ~is_whole,
        "second_size_below_8": (second >= 0) & ~second_large,
        "second_size_whole_tiles": second_large & second_whole,
        "second_size_ragged": second_large & ~second_whole,
    }
    return {name: columns.by_code(columns.all_nodes, term * share) for name, term in terms.items()}


def _operand_sums(columns: _Columns) -> dict[str, Values]:
    edges, position = columns.graph.edge_index, columns.position
    consumer, operand = edges[position[edges[:, 0]] >= 0].T
    members = columns.members(position[consumer])
    default, n_bytes = columns.defaults[operand], columns.bytes_of[operand]
    # A scalar has no layout.
    is_fixed = (position[operand] < 0) & (default != 0)
    weights = {"bytes": _shares(n_bytes * is_fixed), "edges": _shares(is_fixed)}
    sums = {f"fixed_operand_copied_{unit}": np.zeros(columns.codes.shape[:2]) for unit in weights}
    for layout in np.unique(default[is_fixed]):
        is_copied = columns.operand_bits >> layout & 1 == 0  # (m, a)
        for unit, weight in weights.items():
            by_column = members @ (weight * (default == layout))
            sums[f"fixed_operand_copied_{unit}"] += is_copied * by_column[:, None]
    growth = padding_growth(dimension_sizes(columns.graph.node_feat[operand]))  # (e, 49)
    padding = np.take_along_axis(growth, _where_open(default), axis=1) * _shares(n_bytes)[:, None]
    for number, tensor in enumerate(TENSORS[1:], start=1):
        sums[f"log_{tensor}_padding"] = columns.by_code(members, padding, number)
    return sums


def _reader_sums(columns: _Columns) -> dict[str, Values]:
    edges, position = columns.graph.edge_index, columns.position
    reader, producer = edges[position[edges[:, 1]] >= 0].T
    sizes = dimension_sizes(columns.graph.node_feat)
    is_same = (sizes[reader] == sizes[producer]).all(axis=1)
    is_fixed = (position[reader] < 0) & is_same
    is_copied = _where_open(columns.defaults[producer]) != columns.defaults[reader][:, None]
    weights = {"bytes": _shares(columns.bytes_of[producer] * is_fixed), "edges": _shares(is_fixed)}
    members = columns.members(position[producer])
    return {
        f"fixed_reader_copied_{unit}": columns.by_code(members, is_copied * weight[:, None])
        for unit, weight in weights.items()
    }
