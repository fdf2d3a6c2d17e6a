"""Hand-crafted statistics of layout configs, for rankers that see one row per config.

Each statistic is a share between 0 and 1, or a logarithm, so that one model serves graphs of every
size. Ideas: what the minor dimension of each tensor does, by the tensor's bytes, is what a layout
costs on any machine; copies implied by layout mismatches are what the competition's tree-based
entries used; waste against the 8 x 128 tile is a fact of the TPU.

Roles: a layout names dimensions by number. Which of them is summed over, or counts the images of a
batch, differs from program to program, while what a layout costs goes by what its minor dimension
does, and by how large the tensor is. Convolutions say it themselves. The dataset has no features of
a dot's dimensions, but sizes tell: what both operands have and the output lacks is contracted.

Copies: a layout chosen for a convolution's output travels through elementwise operations until
another operation asks for a layout of its own; where the two differ the compiler inserts a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, groupby, product
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import COLUMN_OF, ELEMENT_BYTES, ELEMENT_TYPE, OPCODES, SHAPE_PRODUCT
from data.graphs.packing import N_CODES, N_SYMBOLS, N_TENSORS
from features.padding import dimension_sizes, minor_codes, minor_to_major

TENSORS = ("output", "input", "kernel")
OPCODE_GROUPS = ("convolution", "dot", "reshape")
TILE_MINOR, TILE_SECOND = 128, 8
# Programs hold long chains of elementwise operations of one shape; the walk back from one operand
# takes no further step once it has seen this many nodes, which keeps its cost linear in
# configurable nodes. Steps are taken whole, so that the order of nodes and edges does not matter.
MAX_VISITED = 64

# "rows" and "columns" are the output's own dimensions that the input and the kernel bring along: of
# a convolution its images and its output features; of a reshape all dimensions but the last, and
# the last. "open": the layout is left to the compiler. "other": sizes did not tell.
ROLES = ("open", "contracted", "rows", "columns", "batch", "spatial", "other")
OPEN, CONTRACTED, ROWS, COLUMNS, BATCH, SPATIAL, OTHER = range(len(ROLES))

# What a minor dimension can do, by opcode, in its output, its input and its kernel.
ROLES_OF = {
    "convolution": (
        (OPEN, ROWS, COLUMNS, SPATIAL),
        (OPEN, CONTRACTED, ROWS, SPATIAL),
        (OPEN, CONTRACTED, COLUMNS, SPATIAL),
    ),
    "dot": (
        (OPEN, ROWS, COLUMNS, BATCH, OTHER),
        (OPEN, CONTRACTED, ROWS, BATCH, OTHER),
        (OPEN, CONTRACTED, COLUMNS, BATCH, OTHER),
    ),
    "reshape": ((OPEN, ROWS, COLUMNS), (OPEN, ROWS, COLUMNS), ()),
}

_OF_CONVOLUTION = (
    {"output_batch_dim": ROWS, "output_feature_dim": COLUMNS},
    {"input_batch_dim": ROWS, "input_feature_dim": CONTRACTED},
    {"kernel_output_feature_dim": COLUMNS, "kernel_input_feature_dim": CONTRACTED},
)

Sizes = tuple[int, ...]
Roles = tuple[int, ...]


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
# docs/reference/statistics.md has the formulas of all statistics.
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
    role, bytes_share = tensor_roles(graph, bytes_of)
    graph_statistics = [
        np.log1p(graph.n_nodes),
        np.log1p(len(ids)),
        np.log1p(bytes_of.sum()),
        *groups.mean(axis=0),
    ]
    default_code = minor_codes(layouts[ids])[:, 0]
    return LayoutTables(
        weight=weight.astype(np.float32),
        role=role,
        tensor_weight=bytes_share[:, :, None] * groups[:, None].astype(np.float32),
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
    """Walk back from each configurable node through nodes of unchanged shape."""
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


def tensor_roles(
    graph: LayoutGraph, bytes_of: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Work out the roles of a graph's dimensions; cost grows with edges and configurable nodes.

    Returns:
        role: (k, 3, 7) int8 which of ROLES it is for a tensor to have that symbol as the minor
            dimension: symbol 0 leaves it open, symbol d + 1 names dimension d.
        bytes_share: (k, 3) float32 of the bytes of all these tensors; 0 where there is none.
    """
    ids = graph.node_config_ids
    padded_sizes = dimension_sizes(graph.node_feat)
    position = {int(node): place for place, node in enumerate(ids)}
    operands: list[list[int]] = [[] for _ in ids]
    for consumer, producer in graph.edge_index[np.isin(graph.edge_index[:, 0], ids)].tolist():
        operands[position[consumer]].append(producer)
    role = np.full((len(ids), N_TENSORS, N_SYMBOLS), OTHER, np.int8)
    role[:, :, 0] = OPEN
    moved = np.zeros((len(ids), N_TENSORS))
    for place, node in enumerate(ids.tolist()):
        nodes = [node, *operands[place][: N_TENSORS - 1]]
        sizes = [tuple(size for size in padded_sizes[i].tolist() if size >= 0) for i in nodes]
        opcode = graph.node_opcode[node]
        if opcode == OPCODES["convolution"]:
            found, is_swapped = _convolution_roles(graph.node_feat[node], sizes)
        elif opcode == OPCODES["dot"] and len(nodes) > 1:
            found, is_swapped = dot_roles(sizes[0], sizes[1], sizes[-1])
        else:
            found = tuple(len(own[1:]) * (ROWS,) + (COLUMNS,) for own in sizes[:2])
            is_swapped = False
        for tensor, own in enumerate(found):
            role[place, tensor, 1 : len(own) + 1] = own
        if is_swapped:
            nodes[1:] = nodes[:0:-1]
        moved[place, : len(nodes)] = bytes_of[nodes]
    return role, (moved / max(moved.sum(), 1.0)).astype(np.float32)


def _convolution_roles(
    node_feat: NDArray[np.float32], sizes: Sequence[Sizes]
) -> tuple[tuple[Roles, ...], bool]:
    """Return the roles of a convolution's tensors, and whether its kernel is listed first."""
    dims = [
        {
            int(node_feat[COLUMN_OF[f"convolution_dim_numbers_{name}"]]): role
            for name, role in of.items()
        }
        for of in _OF_CONVOLUTION
    ]
    found = tuple(tuple(of.get(d, SPATIAL) for d in range(N_SYMBOLS - 1)) for of in dims)
    return found, not _fits(sizes, found) and _fits([sizes[0], *sizes[:0:-1]], found)


def _fits(sizes: Sequence[Sizes], found: tuple[Roles, ...]) -> bool:
    """Tell whether the output has the input's images and the kernel's output features."""
    if len(sizes) < N_TENSORS:
        return True
    of = [dict(zip(roles, own, strict=False)) for roles, own in zip(found, sizes, strict=True)]
    return of[0].get(ROWS) == of[1].get(ROWS) and of[0].get(COLUMNS) == of[2].get(COLUMNS)


@lru_cache(maxsize=4096)
def dot_roles(output: Sizes, first: Sizes, second: Sizes) -> tuple[tuple[Roles, ...], bool]:
    """Tell the roles of a dot's dimensions from their sizes.

    The output has the batch dimensions, then the input's own, then the kernel's own, each in their
    order. Where several readings fit, the usual one is taken: one dimension is contracted, the last
    of the input and the kernel's first, and operands are listed in order.

    Returns:
        The roles of output, input and kernel, empty where no reading fits; and whether the kernel
        is listed first.
    """
    for n_contracted in (1, 2, 3, 0):
        for is_swapped, (lhs, rhs) in enumerate(((first, second), (second, first))):
            n_batch = len(lhs) + len(rhs) - len(output) - 2 * n_contracted
            n_rows = len(lhs) - n_batch - n_contracted
            if min(n_batch, n_rows, len(rhs) - n_batch - n_contracted) < 0:
                continue
            batch, rows, columns = np.split(np.array(output), (n_batch, n_batch + n_rows))
            for left in _readings(lhs, tuple(batch), tuple(rows), ROWS):
                for right in _readings(rhs, tuple(batch), tuple(columns), COLUMNS):
                    if _contracted(lhs, left) == _contracted(rhs, right):
                        own = (BATCH,) * n_batch + (ROWS,) * n_rows + (COLUMNS,) * len(columns)
                        return (own, left, right), bool(is_swapped)
    return (), False


def _contracted(sizes: Sizes, roles: Roles) -> list[int]:
    return sorted(size for size, role in zip(sizes, roles, strict=True) if role == CONTRACTED)


def _readings(sizes: Sizes, batch: Sizes, own: Sizes, role: int) -> Iterator[Roles]:
    """Yield the roles that an operand's dimensions may have, the usual ones first."""
    places = list(combinations(range(len(sizes)), len(own)))
    for chosen in places if role == ROWS else places[::-1]:
        rest = [place for place in range(len(sizes)) if place not in chosen]
        for shared in combinations(rest, len(batch)):
            if tuple(sizes[p] for p in chosen) == own and tuple(sizes[p] for p in shared) == batch:
                yield tuple(
                    role if p in chosen else BATCH if p in shared else CONTRACTED
                    for p in range(len(sizes))
                )
