"""What each dimension of a configurable node's tensors does in its operation; k such nodes.

A layout names dimensions by number. Which of them is summed over, or counts the images of a batch,
differs from program to program, while what a layout costs goes by what its minor dimension does,
and by how large the tensor is. Convolutions say it themselves. The dataset has no features of a
dot's dimensions, but sizes tell: what both operands have and the output lacks is contracted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import NODE_FEATURE_NAMES, OPCODES
from data.graphs.node_layouts import dimension_sizes
from features.layout_codes import N_SYMBOLS, N_TENSORS

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

_COLUMN = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}
_OF_CONVOLUTION = (
    {"output_batch_dim": ROWS, "output_feature_dim": COLUMNS},
    {"input_batch_dim": ROWS, "input_feature_dim": CONTRACTED},
    {"kernel_output_feature_dim": COLUMNS, "kernel_input_feature_dim": CONTRACTED},
)

Sizes = tuple[int, ...]
Roles = tuple[int, ...]


@dataclass(frozen=True)
class TensorRoles:
    """The tensors of each configurable node, its output, its input and its kernel."""

    # (k, 3, 7) which of ROLES it is to have that symbol as the minor dimension: symbol 0 leaves it
    # open, symbol d + 1 names dimension d
    role: NDArray[np.int8]
    bytes_share: NDArray[np.float32]  # (k, 3) of all these tensors' bytes; 0 where there is none


def tensor_roles(graph: LayoutGraph, bytes_of: NDArray[np.float64]) -> TensorRoles:
    """Work out the roles of a graph's dimensions; cost grows with edges and configurable nodes.

    Args:
        bytes_of: (n,) bytes of each node's output.
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
    return TensorRoles(role, (moved / max(moved.sum(), 1.0)).astype(np.float32))


def _convolution_roles(
    node_feat: NDArray[np.float32], sizes: Sequence[Sizes]
) -> tuple[tuple[Roles, ...], bool]:
    """Return the roles of a convolution's tensors, and whether its kernel is listed first."""
    dims = [
        {
            int(node_feat[_COLUMN[f"convolution_dim_numbers_{name}"]]): role
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
