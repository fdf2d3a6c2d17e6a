"""What layouts mean for the nodes of a program: roles of dimensions, padding, and copies.

The cost of a layout depends on the role of each tensor's minor dimension and on the tensor's bytes.
The competition's tree-based entries used the copies that layout mismatches imply. Waste against the
8 x 128 tile is specific to the TPU.

Roles: a layout names dimensions by number, and the role of a number differs from program to
program. Convolutions have features with the roles. Dots have none, so their roles follow from
sizes. A dimension that both operands have and the output lacks is contracted.

Copies: the layout of a convolution's output passes through elementwise operations to the next
operation with a layout. If the two layouts differ, the compiler inserts a copy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import COLUMN_OF, ELEMENT_BYTES, ELEMENT_TYPE, OPCODES, SHAPE_PRODUCT
from data.graphs.packing import N_CODES, N_SYMBOLS, N_TENSORS
from features.padding import dimension_sizes

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


def output_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the bytes of each node's output, (n,), 0 for tuples and tokens."""
    # Impossible sizes, which `audit` notes, must not reach a logarithm or overflow.
    return (element_bytes(node_feat) * node_feat[:, SHAPE_PRODUCT]).clip(0, 2.0**63)


def element_bytes(node_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the bytes of one element of each node's output, (n,), 0 for tuples and tokens.

    Types that are newer than the dataset, for example f8e4m3fn and s4, have no column. They take
    one byte, or fewer bits if the layout packs them.
    """
    types, bits = node_feat[:, ELEMENT_TYPE], node_feat[:, COLUMN_OF["element_size_in_bits"]]
    by_type = types @ np.asarray(ELEMENT_BYTES, dtype=np.float32)
    whole_bytes = np.where(types.any(axis=1), by_type, 1.0)
    return np.where(bits > 0, bits / 8, whole_bytes).astype(np.float64)


def padding_growth(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the growth of tensors by padding to the 8 x 128 tile, for each layout code.

    Args:
        sizes: (n, 6), -1 beyond the rank.

    Returns:
        (n, 49) factors of 1 or more, 1 for a code without a dimension of the tensor.
    """
    first = np.arange(N_CODES) // N_SYMBOLS - 1
    second = np.arange(N_CODES) % N_SYMBOLS - 1
    growth = np.ones((len(sizes), N_CODES))
    for dimension, tile in ((first, TILE_MINOR), (second, TILE_SECOND)):
        size = np.where(dimension >= 0, sizes[:, dimension], -1)
        n_rounded = np.ceil(size / tile) * tile
        growth *= np.where(size > 0, n_rounded / np.maximum(size, 1), 1.0)
    return growth


def layout_sources(graph: LayoutGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the configurable nodes whose outputs reach another one with the same shape.

    Returns:
        Consumers and producers of p pairs, (p,) positions in config order each.
    """
    consumer, operand = graph.edge_index.T
    position, sizes = config_positions(graph), dimension_sizes(graph.node_feat)
    is_passing = (position[consumer] < 0) & (sizes[consumer] == sizes[operand]).all(axis=1)
    sources_of: dict[int, list[int]] = {}
    for node, source in _pairs(consumer[is_passing], operand[is_passing]):
        sources_of.setdefault(node, []).append(source)
    is_start, configurable = position[consumer] >= 0, set(graph.node_config_ids.tolist())
    starts = set(operand[is_start].tolist())
    sources = {start: _walk_back(start, sources_of) & configurable for start in starts}
    edges = _pairs(consumer[is_start], operand[is_start])
    pairs = [(node, source) for node, start in edges for source in sources[start]]
    consumers, producers = position[np.asarray(pairs, dtype=np.int64).reshape(-1, 2)].T
    return consumers, producers


def _pairs(first: NDArray[np.int64], second: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    return zip(first.tolist(), second.tolist(), strict=True)


def config_positions(graph: LayoutGraph) -> NDArray[np.int64]:
    """Return the place of each node in config order, (n,), -1 if it is not configurable."""
    position = np.full(graph.n_nodes, -1)
    position[graph.node_config_ids] = np.arange(len(graph.node_config_ids))
    return position


def _walk_back(start: int, sources_of: Mapping[int, Sequence[int]]) -> set[int]:
    nodes, step = {start}, {start}
    while step and len(nodes) <= MAX_VISITED:
        step = {source for node in step for source in sources_of.get(node, ())} - nodes
        nodes |= step
    return nodes


def tensor_roles(
    graph: LayoutGraph, bytes_of: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the roles of a graph's dimensions, from the bytes of each node's output, (n,).

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
    tensor_bytes = np.zeros((len(ids), N_TENSORS))
    for place, node in enumerate(ids.tolist()):
        nodes = [node, *operands[place][: N_TENSORS - 1]]
        sizes = [tuple(size for size in padded_sizes[i].tolist() if size >= 0) for i in nodes]
        opcode = graph.node_opcode[node]
        if opcode == OPCODES["convolution"]:
            roles, is_swapped = _convolution_roles(graph.node_feat[node], sizes)
        elif opcode == OPCODES["dot"] and len(nodes) > 1:
            roles, is_swapped = dot_roles(sizes[0], sizes[1], sizes[-1])
        else:
            roles = tuple(len(dims[1:]) * (ROWS,) + (COLUMNS,) for dims in sizes[:2])
            is_swapped = False
        for tensor, dimension_roles in enumerate(roles):
            role[place, tensor, 1 : len(dimension_roles) + 1] = dimension_roles
        if is_swapped:
            nodes[1:] = nodes[:0:-1]
        tensor_bytes[place, : len(nodes)] = bytes_of[nodes]
    return role, (tensor_bytes / max(tensor_bytes.sum(), 1.0)).astype(np.float32)


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
            for lhs_roles in _readings(lhs, tuple(batch), tuple(rows), ROWS):
                for rhs_roles in _readings(rhs, tuple(batch), tuple(columns), COLUMNS):
                    if _contracted_sizes(lhs, lhs_roles) == _contracted_sizes(rhs, rhs_roles):
                        out = (BATCH,) * n_batch + (ROWS,) * n_rows + (COLUMNS,) * len(columns)
                        return (out, lhs_roles, rhs_roles), bool(is_swapped)
    return (), False


def _contracted_sizes(sizes: Sizes, roles: Roles) -> list[int]:
    return sorted(size for size, role in zip(sizes, roles, strict=True) if role == CONTRACTED)


def _readings(sizes: Sizes, batch: Sizes, free: Sizes, role: int) -> Iterator[Roles]:
    # The usual readings come first.
    places = list(combinations(range(len(sizes)), len(free)))
    for free_places in places if role == ROWS else places[::-1]:
        if tuple(sizes[p] for p in free_places) != free:
            continue
        other_places = [place for place in range(len(sizes)) if place not in free_places]
        for batch_places in combinations(other_places, len(batch)):
            if tuple(sizes[p] for p in batch_places) == batch:
                yield tuple(
                    role if p in free_places else BATCH if p in batch_places else CONTRACTED
                    for p in range(len(sizes))
                )
