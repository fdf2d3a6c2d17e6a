"""Hand-crafted statistics of layout configs, for rankers that see one row per config.

Each statistic is a share between 0 and 1, or a logarithm, so that one model serves graphs of every
size. Ideas: what the minor dimension of each tensor does, by the tensor's bytes, is what a layout
costs on any machine; copies implied by layout mismatches are what the competition's tree-based
entries used; waste against the 8 x 128 tile is a fact of the TPU.

Copies: a layout chosen for a convolution's output travels through elementwise operations until
another operation asks for a layout of its own; where the two differ the compiler inserts a copy.
"""

from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import ELEMENT_BYTES, ELEMENT_TYPE, OPCODES, SHAPE_PRODUCT
from data.graphs.node_layouts import dimension_sizes, minor_to_major
from features.layout_codes import N_CODES, N_SYMBOLS, minor_codes
from features.statistics.roles import ROLES, ROLES_OF, tensor_roles

TENSORS = ("output", "input", "kernel")
OPCODE_GROUPS = ("convolution", "dot", "reshape")
TILE_MINOR, TILE_SECOND = 128, 8
# Programs hold long chains of elementwise operations of one shape; the walk back from one operand
# takes no further step once it has seen this many nodes, which keeps its cost linear in
# configurable nodes. Steps are taken whole, so that the order of nodes and edges does not matter.
MAX_VISITED = 64


@dataclass(frozen=True)
class SourceEdges:
    """p pairs of configurable nodes, as positions in config order."""

    consumer: NDArray[np.int64]  # (p,)
    producer: NDArray[np.int64]  # (p,)
    bytes_share: NDArray[np.float32]  # (p,) bytes of the producer's output, as a share of all pairs


@dataclass(frozen=True)
class LayoutTables:
    """What the statistics of one graph share between configs."""

    # (k, 3) share of the bytes that configurable nodes put out, by opcode group
    weight: NDArray[np.float32]
    role: NDArray[np.int8]  # (k, 3, 7) what the minor dimension does, by tensor and layout symbol
    tensor_weight: NDArray[np.float32]  # (k, 3, 3) share of all tensors' bytes, by tensor and group
    default_code: NDArray[np.int8]  # (k,) layout of each one's output as the compiler had it
    padded_share: NDArray[np.float32]  # (k, 49) padded bytes by layout code, as a share of all
    sources: SourceEdges  # which configurable node's output reaches which configurable node
    graph: NDArray[np.float32]  # (g,) statistics of the graph itself, the same for all configs


_ROLES = tuple(
    (tensor, role, group)
    for tensor, role, group in product(range(len(TENSORS)), range(len(ROLES)), OPCODE_GROUPS)
    if role in ROLES_OF[group][tensor]
)
_GRAPH_STATISTICS = (
    *("log_nodes", "log_configurable", "log_bytes"),
    *(f"share_{group}" for group in OPCODE_GROUPS),
)
# STATISTICS.md has the formulas of these and of those in the other files.
LAYOUT_STATISTICS = (
    *(f"{TENSORS[tensor]}_{ROLES[role]}_{group}" for tensor, role, group in _ROLES),
    *("open_nodes", "all_open"),
    *(f"output_as_default_{group}" for group in OPCODE_GROUPS),
    *("log_padding", "copied_bytes_share", "copied_edges_share", "open_edges_share"),
    *_GRAPH_STATISTICS,
)
N_CONFIG_STATISTICS = len(LAYOUT_STATISTICS) - len(_GRAPH_STATISTICS)  # they differ by config


def layout_tables(graph: LayoutGraph) -> LayoutTables:
    """Work out what all configs of a graph share; cost grows with nodes and edges."""
    ids = graph.node_config_ids
    bytes_of = output_bytes(graph.node_feat)
    layouts = minor_to_major(graph.node_feat)
    opcode = graph.node_opcode[ids]
    groups = np.stack([opcode == OPCODES[name] for name in OPCODE_GROUPS], axis=1)
    share = bytes_of[ids] / max(bytes_of[ids].sum(), 1.0)
    weight = groups * share[:, None]
    sizes = dimension_sizes(graph.node_feat[ids])
    roles = tensor_roles(graph, bytes_of)
    graph_statistics = [
        np.log1p(graph.n_nodes),
        np.log1p(len(ids)),
        np.log1p(bytes_of.sum()),
        *groups.mean(axis=0),
    ]
    default_code = minor_codes(layouts[ids])[:, 0]
    return LayoutTables(
        weight=weight.astype(np.float32),
        role=roles.role,
        tensor_weight=roles.bytes_share[:, :, None] * groups[:, None].astype(np.float32),
        default_code=default_code,
        padded_share=(padding_growth(sizes) * share[:, None]).astype(np.float32),
        sources=layout_sources(graph, bytes_of),
        graph=np.asarray(graph_statistics, dtype=np.float32),
    )


def layout_statistics(tables: LayoutTables, codes: NDArray[np.int8]) -> NDArray[np.float32]:
    """Compute what LAYOUT_STATISTICS names from `minor_codes` (c, k, 3); (c, f) float32."""
    minor = codes // np.int8(N_SYMBOLS)
    nodes = np.arange(codes.shape[1])
    columns = []
    for tensor, named in groupby(_ROLES, itemgetter(0)):
        flat = tables.role[:, tensor].reshape(-1)
        role = flat.take(minor[:, :, tensor] + (nodes * N_SYMBOLS).astype(np.int32))  # (c, k)
        for number, found in groupby(named, itemgetter(1)):
            groups = [OPCODE_GROUPS.index(group) for _, _, group in found]
            sums = (role == number).astype(np.float32) @ tables.tensor_weight[:, tensor]
            columns.append(sums[:, groups])
    is_open = (codes == 0).all(axis=2)
    columns.append(np.stack([is_open.mean(axis=1), is_open.all(axis=1)], axis=1))
    output = codes[:, :, 0]
    as_default = (output == 0) | (output == tables.default_code)
    columns.append(as_default.astype(np.float32) @ tables.weight)
    padding = tables.padded_share[nodes, _chosen(tables, codes)].sum(axis=1)
    columns.append(np.log(np.maximum(padding, 1e-6))[:, None])
    if len(tables.sources.consumer):
        copied, is_open = implied_copies(tables, codes)
        by_bytes = copied.astype(np.float32) @ tables.sources.bytes_share
        columns.append(np.stack([by_bytes, copied.mean(axis=1), is_open.mean(axis=1)], axis=1))
    else:
        columns.append(np.zeros((len(codes), 3)))
    columns.append(np.tile(tables.graph, (len(codes), 1)))
    return np.concatenate(columns, axis=1).astype(np.float32)


def output_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) bytes of each node's output; 0 for tuples and tokens."""
    element = node_feat[:, ELEMENT_TYPE] @ np.asarray(ELEMENT_BYTES, dtype=np.float32)
    return element.astype(np.float64) * node_feat[:, SHAPE_PRODUCT]


def padding_growth(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """How padding to the 8 x 128 tile grows tensors of these sizes (n, 6) by layout code; (n, 49).

    A code that names a dimension the tensor lacks, or none, counts without padding.
    """
    first = np.arange(N_CODES) // N_SYMBOLS - 1
    second = np.arange(N_CODES) % N_SYMBOLS - 1
    growth = np.ones((len(sizes), N_CODES))
    for dimension, tile in ((first, TILE_MINOR), (second, TILE_SECOND)):
        size = np.where(dimension >= 0, sizes[:, dimension], -1)
        padded = np.ceil(size / tile) * tile
        growth *= np.where(size > 0, padded / np.maximum(size, 1), 1.0)
    return growth


def implied_copies(
    tables: LayoutTables, codes: NDArray[np.int8]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which edges between configurable nodes need a copy, and which are open; (c, p) each.

    An edge needs a copy when its consumer asks for layouts, of its input or its kernel or both,
    and the producer's output has none of them; it is open when the consumer asks for nothing.
    """
    produced = _chosen(tables, codes).take(tables.sources.producer, axis=1)  # (c, p)
    unmet = np.ones(produced.shape, dtype=np.bool_)
    is_open = unmet.copy()
    for tensor in range(1, len(TENSORS)):
        wanted = codes[:, :, tensor].take(tables.sources.consumer, axis=1)  # (c, p)
        unmet &= (wanted == 0) | (wanted != produced)
        is_open &= wanted == 0
    return unmet & ~is_open, is_open


def _chosen(tables: LayoutTables, codes: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return each node's output (c, k), the compiler's own where it is left open."""
    return np.where(codes[:, :, 0] == 0, tables.default_code, codes[:, :, 0])


def layout_sources(graph: LayoutGraph, bytes_of: NDArray[np.float64]) -> SourceEdges:
    """Walk back from each configurable node through nodes of unchanged shape.

    Args:
        graph: the whole graph.
        bytes_of: (n,) bytes of each node's output.
    """
    producers: list[list[int]] = [[] for _ in range(graph.n_nodes)]
    for consumer, producer in graph.edge_index.tolist():
        producers[consumer].append(producer)
    shapes = [tuple(row) for row in dimension_sizes(graph.node_feat)]
    position = {int(node): i for i, node in enumerate(graph.node_config_ids)}
    pairs = [
        (consumer, source)
        for node, consumer in position.items()
        for operand in producers[node]
        for source in sorted(_sources(operand, producers, shapes, position))
    ]
    pair_array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    weights = bytes_of[graph.node_config_ids][pair_array[:, 1]]
    share = weights / max(float(weights.sum()), 1.0)
    return SourceEdges(pair_array[:, 0], pair_array[:, 1], share.astype(np.float32))


def _sources(
    start: int,
    producers: list[list[int]],
    shapes: list[tuple[int, ...]],
    position: dict[int, int],
) -> set[int]:
    found: set[int] = set()
    seen = {start}
    reached = [start]
    while reached:
        found.update(position[node] for node in reached if node in position)
        if len(seen) > MAX_VISITED:
            break
        passing = [node for node in reached if node not in position]
        step = {
            operand
            for node in passing
            for operand in producers[node]
            if shapes[operand] == shapes[node]
        }
        reached = sorted(step - seen)
        seen |= step
    return found
