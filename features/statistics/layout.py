"""Hand-crafted statistics of layout configs, for rankers that see one row per config.

Each statistic is a share between 0 and 1, or a logarithm, so one model serves graphs of every size.
The cost of a layout depends on the role of each tensor's minor dimension and on the tensor's bytes.
The competition's tree-based entries used the copies that layout mismatches imply. Waste against the
8 x 128 tile is specific to the TPU.

Roles: a layout names dimensions by number, and the role of a number differs from program to
program. Convolutions have features with the roles. Dots have none, so their roles follow from
sizes. A dimension that both operands have and the output lacks is contracted.

Copies: the layout of a convolution's output passes through elementwise operations to the next
operation with a layout. If the two layouts differ, the compiler inserts a copy.
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
# The walk back from an operand ends after a step that exceeds this limit. Programs have long chains
# of elementwise operations, and the limit keeps the cost linear in configurable nodes.
# Steps are not split, so the order of nodes and edges does not matter.
MAX_VISITED = 64

# "rows" and "columns" are output dimensions that come from the input and from the kernel. Examples
# are the images and the output features of a convolution. For a reshape, "columns" is the last
# dimension and "rows" are all others. "open" means that the compiler chooses the layout. "other"
# means that the sizes do not show the role.
ROLES = ("open", "contracted", "rows", "columns", "batch", "spatial", "other")
OPEN, CONTRACTED, ROWS, COLUMNS, BATCH, SPATIAL, OTHER = range(len(ROLES))

# Possible roles of a minor dimension, by opcode, in the output, the input and the kernel.
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
    """The part of the statistics of one graph that its configs share."""

    # (k, 3) share of the bytes that configurable nodes put out, by opcode group
    weight: NDArray[np.float32]
    role: NDArray[np.int8]  # (k, 3, 7) role of the minor dimension, by tensor and layout symbol
    tensor_weight: NDArray[np.float32]  # (k, 3, 3) share of all tensors' bytes, by tensor and group
    default_code: NDArray[np.int8]  # (k,) compiler's layout of each configurable node's output
    padded_share: NDArray[np.float32]  # (k, 49) padded bytes by layout code, as a share of all
    sources: SourceEdges  # pairs of configurable nodes, the output of one reaches the other
    graph: NDArray[np.float32]  # (g,) statistics of the graph, equal for all configs


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
# Number of statistics that differ between configs.
N_CONFIG_STATISTICS = len(LAYOUT_STATISTICS) - len(_GRAPH_STATISTICS)


def layout_tables(graph: LayoutGraph) -> LayoutTables:
    """Compute the part of the statistics that all configs of a graph share.

    The cost grows with nodes and edges.
    """
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
    """Compute the statistics in LAYOUT_STATISTICS.

    Args:
        tables: Result of `layout_tables` for the graph.
        codes: (c, k, 3) result of `minor_codes` for the configs.

    Returns:
        (c, f) float32.
    """
    minor = codes // np.int8(N_SYMBOLS)
    nodes = np.arange(codes.shape[1])
    columns = []
    for tensor, named in groupby(_ROLES, itemgetter(0)):
        flat = tables.role[:, tensor].reshape(-1)
        role = flat.take(minor[:, :, tensor] + (nodes * N_SYMBOLS).astype(np.int32))  # (c, k)
        for number, entries in groupby(named, itemgetter(1)):
            groups = [OPCODE_GROUPS.index(group) for _, _, group in entries]
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
    """Return the bytes of each node's output.

    Args:
        node_feat: (n, 140) stock features of the nodes.

    Returns:
        (n,) float64, 0 for tuples and tokens.
    """
    return element_bytes(node_feat) * node_feat[:, SHAPE_PRODUCT]


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the bytes of one element of each node's output.

    Types that are newer than the dataset, for example f8e4m3fn and s4, have no column. They take
    one byte, or fewer bits if the layout packs them.

    Args:
        node_feat: (n, 140) stock features of the nodes.

    Returns:
        (n,) float64, 0 for tuples and tokens.
    """
    types, bits = node_feat[:, ELEMENT_TYPE], node_feat[:, COLUMN_OF["element_size_in_bits"]]
    known = types @ np.asarray(ELEMENT_BYTES, dtype=np.float32)
    unpacked = np.where(types.any(axis=1), known, 1.0)
    return np.where(bits > 0, bits / 8, unpacked).astype(np.float64)


def padding_growth(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the growth of tensors by padding to the 8 x 128 tile, for each layout code.

    Args:
        sizes: (n, 6) sizes of the tensors, -1 beyond the rank.

    Returns:
        (n, 49) factors of 1 or more, 1 for a code without a dimension of the tensor.
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
    """Mark the edges between configurable nodes that need a copy, and the open edges.

    An edge needs a copy if its consumer names layouts for its input or kernel, and the producer's
    output has none of them. An edge is open if its consumer names no layout.

    Args:
        tables: Result of `layout_tables` for the graph.
        codes: (c, k, 3) codes of the configs.

    Returns:
        (c, p) mask of the copies, and (c, p) mask of the open edges.
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
    return np.where(codes[:, :, 0] == 0, tables.default_code, codes[:, :, 0])


def layout_sources(graph: LayoutGraph, bytes_of: NDArray[np.float64]) -> SourceEdges:
    """Find the configurable nodes whose outputs reach another one with the same shape.

    Args:
        graph: Layout graph.
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
    sources: set[int] = set()
    seen = {start}
    reached = [start]
    while reached:
        sources.update(position[node] for node in reached if node in position)
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
    return sources


def tensor_roles(
    graph: LayoutGraph, bytes_of: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the roles of a graph's dimensions.

    The cost grows with edges and configurable nodes.

    Args:
        graph: Layout graph.
        bytes_of: (n,) bytes of each node's output.

    Returns:
        role: (k, 3, 7) int8 index in ROLES, by node, tensor and symbol of the minor dimension.
        Symbol 0 leaves it open, symbol d + 1 names dimension d.
        bytes_share: (k, 3) float32 share of the bytes of all these tensors, 0 for a missing tensor.
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
            roles, is_swapped = _convolution_roles(graph.node_feat[node], sizes)
        elif opcode == OPCODES["dot"] and len(nodes) > 1:
            roles, is_swapped = dot_roles(sizes[0], sizes[1], sizes[-1])
        else:
            roles = tuple(len(own[1:]) * (ROWS,) + (COLUMNS,) for own in sizes[:2])
            is_swapped = False
        for tensor, own in enumerate(roles):
            role[place, tensor, 1 : len(own) + 1] = own
        if is_swapped:
            nodes[1:] = nodes[:0:-1]
        moved[place, : len(nodes)] = bytes_of[nodes]
    return role, (moved / max(moved.sum(), 1.0)).astype(np.float32)


def _convolution_roles(
    node_feat: NDArray[np.float32], sizes: Sequence[Sizes]
) -> tuple[tuple[Roles, ...], bool]:
    # The second result is True if the kernel is the first operand.
    dims = [
        {
            int(node_feat[COLUMN_OF[f"convolution_dim_numbers_{name}"]]): role
            for name, role in of.items()
        }
        for of in _OF_CONVOLUTION
    ]
    roles = tuple(tuple(of.get(d, SPATIAL) for d in range(N_SYMBOLS - 1)) for of in dims)
    return roles, not _fits(sizes, roles) and _fits([sizes[0], *sizes[:0:-1]], roles)


def _fits(sizes: Sequence[Sizes], roles: tuple[Roles, ...]) -> bool:
    if len(sizes) < N_TENSORS:
        return True
    of = [dict(zip(r, s, strict=False)) for r, s in zip(roles, sizes, strict=True)]
    return of[0].get(ROWS) == of[1].get(ROWS) and of[0].get(COLUMNS) == of[2].get(COLUMNS)


@lru_cache(maxsize=4096)
def dot_roles(output: Sizes, first: Sizes, second: Sizes) -> tuple[tuple[Roles, ...], bool]:
    """Find the roles of a dot's dimensions by their sizes.

    The output has the batch dimensions, then the input's dimensions, then the kernel's, each in
    order. If several readings fit, the usual one wins. In the usual one, the last dimension of the
    input and the first of the kernel are contracted, and operands are in order.

    Returns:
        The roles of output, input and kernel, empty if no reading fits. True if the kernel is
        listed first.
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
    # The usual readings come first.
    places = list(combinations(range(len(sizes)), len(own)))
    for chosen in places if role == ROWS else places[::-1]:
        rest = [place for place in range(len(sizes)) if place not in chosen]
        for shared in combinations(rest, len(batch)):
            if tuple(sizes[p] for p in chosen) == own and tuple(sizes[p] for p in shared) == batch:
                yield tuple(
                    role if p in chosen else BATCH if p in shared else CONTRACTED
                    for p in range(len(sizes))
                )
