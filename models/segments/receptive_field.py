"""Which nodes can differ between configs after each block: only they are computed per config.

A config sets the layouts of k configurable nodes. One round of message passing carries that one
edge further: after l rounds only nodes within l edges of a configurable one differ between
configs. All others have one value, (n, 1, h), whatever the number of configs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from models.layout.cross_config_sage import SageBlock
from models.layout.sparse_aggregation import Neighbours, SplitAggregation, joint_matrix
from models.training.device import OnDevice


class Ring(SplitAggregation):
    """What the nodes that vary after a block read: of those that vary before it, and of the rest.

    Attributes:
        varying: (b,) int64 the nodes that vary before the block.
        after: (a,) int64 ascending, those that vary after it; contains all of `varying`.
        place: (b,) int64 where each of the b nodes stands in `after`.

    Args:
        matrix: (n, 3n) by `joint_matrix`.
        before: (b,) int64.
        after: (a,) int64 ascending.
    """

    def __init__(
        self, matrix: sparse.csr_matrix, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> None:
        super().__init__(matrix[after], torch.from_numpy(before))
        self.after = torch.from_numpy(after)
        self.place = torch.from_numpy(np.searchsorted(after, before))

    def join(self, shared: Tensor, varying: Tensor) -> Tensor:
        """Return the values of the nodes `after`, (a, c, h), from (n, 1, h) and (b, c, h)."""
        own = shared[self.after].expand(-1, varying.shape[1], -1)
        return own.index_copy(0, self.place, varying)


@dataclass(frozen=True)
class ReceptiveField(OnDevice):
    """How far configs reach, block by block.

    Attributes:
        rings: one per block; none where there is no configurable node.
        reached: (a,) int64 ascending, the nodes that vary after the last block.
        constant: (n - a,) int64 ascending, all others.
        configurable: (k,) int64 where the configurable nodes stand in `reached`.
    """

    rings: tuple[Ring, ...]
    reached: Tensor
    constant: Tensor
    configurable: Tensor


def receptive_field(neighbours: Neighbours, depth: int) -> ReceptiveField:
    """Follow the configs of the nodes `neighbours.varying`, on the CPU, through `depth` blocks."""
    n_nodes, config_ids = neighbours.n_nodes, neighbours.varying.numpy()
    matrix = joint_matrix(neighbours.edge_index, n_nodes)
    adjacency = matrix != 0
    rings, before = list[Ring](), config_ids
    for _ in range(depth if len(config_ids) else 0):
        varies = np.zeros(n_nodes, dtype=np.bool_)
        varies[before] = True
        after = np.flatnonzero(adjacency @ np.tile(varies, 3))
        rings.append(Ring(matrix, before, after))
        before = after
    reached = before if rings else np.sort(config_ids)
    return ReceptiveField(
        rings=tuple(rings),
        reached=torch.from_numpy(reached),
        constant=torch.from_numpy(np.setdiff1d(np.arange(n_nodes), reached)),
        configurable=torch.from_numpy(np.searchsorted(reached, config_ids)),
    )


def advance(
    block: SageBlock, shared: Tensor, varying: Tensor, ring: Ring, neighbours: Neighbours
) -> tuple[Tensor, Tensor]:
    """Take one block; the same as on (n, c, h), for the nodes that vary alone.

    Args:
        block: without attention across configs, which would tie every node to every config.
        shared: (n, 1, h) what all configs have; anything at the nodes ring.varying.
        varying: (b, c, h) what the nodes ring.varying have.
        ring: of this block.
        neighbours: all edges.

    Returns:
        (n, 1, h), anything at the nodes ring.after, and their (a, c, h).
    """
    aggregated = block.aggregate_split(shared, varying, ring)
    moved = block(ring.join(shared, varying), aggregated)
    return advance_shared(block, shared, neighbours), moved


def advance_shared(block: SageBlock, shared: Tensor, neighbours: Neighbours) -> Tensor:
    """Take one block where nothing varies; (n, 1, h) to (n, 1, h)."""
    return block(shared, block.aggregate(shared, neighbours))
