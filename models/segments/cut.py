"""A layout graph cut into segments of consecutive nodes, and the nodes of each that configs change.

Graph Segment Training (Cao et al., NeurIPS 2023) cuts a large graph into parts of bounded size. A
segment has the edges among its nodes. Edges between segments are lost.

A config sets the layouts of k configurable nodes. One round of message passing extends its effect
by one edge. After l rounds, only nodes within l edges of a configurable node differ between configs
and are computed per config. All others have one value, (n, 1, h).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from data.graphs.graph import LayoutGraph
from models.layout.inputs import (
    ConfigInputs,
    LayoutInputs,
    NodeInputs,
    SparseAggregation,
    SplitAggregation,
    joint_matrix,
)
from models.training.device import OnDevice


class Ring(SplitAggregation):
    """Aggregation of the nodes that vary after a block.

    Attributes:
        varying: (b,) int64 nodes that vary before the block.
        after: (a,) int64 ascending nodes that vary after the block, a superset of `varying`.
        place: (b,) int64 position of each node of `varying` in `after`.
    """

    def __init__(
        self, matrix: sparse.csr_matrix, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> None:
        super().__init__(matrix[after], torch.from_numpy(before))
        self.after = torch.from_numpy(after)
        self.place = torch.from_numpy(np.searchsorted(after, before))

    def join(self, shared: Tensor, varying: Tensor) -> Tensor:
        """Return the values of the nodes `after`.

        Args:
            shared: (n, 1, h) values of all nodes.
            varying: (b, c, h) values of the nodes `varying`.

        Returns:
            (a, c, h).
        """
        values = shared[self.after].expand(-1, varying.shape[1], -1)
        return values.index_copy(0, self.place, varying)


@dataclass(frozen=True)
class ReceptiveField(OnDevice):
    """The nodes that configs change."""

    rings: tuple[Ring, ...]  # one per block, empty without a configurable node
    varying: Tensor  # (a,) int64 ascending, the nodes that vary after the last block
    constant: Tensor  # (n - a,) int64 ascending, all others
    configurable: Tensor  # (k,) int64 positions of the configurable nodes in `varying`


@dataclass(frozen=True, kw_only=True)
class Segment(NodeInputs):
    """Some nodes of a graph, with j of its k configurable nodes."""

    vectors: Tensor  # of the graph, see ConfigInputs
    columns: Tensor  # (j,) int64 positions among the graph's config_ids
    reach: ReceptiveField
    of_graph: tuple[int, int, int]  # numbers of nodes, segments and configurable nodes, at least 1

    @property
    def varies(self) -> bool:
        return len(self.columns) > 0


@dataclass(frozen=True, kw_only=True)
class SegmentedGraph(ConfigInputs):
    """The configs of a graph, and its nodes in one or more segments."""

    segments: tuple[Segment, ...]

    @property
    def n_nodes(self) -> int:
        return sum(segment.n_nodes for segment in self.segments)


def cut_graph(
    graph: LayoutGraph,
    *,
    read: Callable[[LayoutGraph], LayoutInputs],
    segment_nodes: int,
    depth: int,
) -> SegmentedGraph:
    """Prune and scale a graph, and cut it.

    Args:
        read: Result of `layout_reader`.
        depth: Number of blocks of the network.
    """
    inputs = read(graph)
    edges, config_ids, n_nodes = inputs.neighbours.edge_index, inputs.config_ids, len(inputs.opcode)
    parts, segments = cut(n_nodes, segment_nodes), []
    for part in parts:
        inside = within(part, edges).all(dim=1)
        columns = within(part, config_ids).nonzero().flatten()
        varying, size = config_ids[columns] - part.start, part.stop - part.start
        neighbours = SparseAggregation(edges[inside] - part.start, size, varying=varying)
        segment = Segment(
            node_feat=inputs.node_feat[part],
            opcode=inputs.opcode[part],
            layout=inputs.layout[part],
            config_ids=varying,
            neighbours=neighbours,
            vectors=inputs.vectors,
            columns=columns,
            reach=receptive_field(neighbours, depth),
            of_graph=(n_nodes, len(parts), max(1, len(config_ids))),
        )
        segments.append(segment)
    configs = {field.name: getattr(inputs, field.name) for field in fields(ConfigInputs)}
    return SegmentedGraph(**configs, segments=tuple(segments))


def within(part: slice, nodes: Tensor) -> Tensor:
    """Mark the nodes of a part among positions of any shape."""
    return (nodes >= part.start) & (nodes < part.stop)


def cut(n_nodes: int, segment_nodes: int) -> list[slice]:
    """Cut consecutive nodes into parts of nearly equal size.

    The dataset lists nodes after their operands, so parts follow the program.
    """
    parts = np.array_split(np.arange(n_nodes), max(1, -(-n_nodes // segment_nodes)))
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [slice(start, stop) for start, stop in pairwise([0, *ends])]


def receptive_field(neighbours: SparseAggregation, depth: int) -> ReceptiveField:
    """Find the nodes that configs change in each block.

    Args:
        neighbours: Edges on the CPU. Configs change the nodes `neighbours.varying`.
    """
    n_nodes, config_ids = neighbours.n_nodes, neighbours.varying.numpy()
    matrix = joint_matrix(neighbours.edge_index, n_nodes)
    rings, varying = list[Ring](), config_ids
    for _ in range(depth if len(config_ids) else 0):
        varies = np.isin(np.arange(n_nodes), varying)
        after = np.flatnonzero((matrix != 0) @ np.tile(varies, 3))
        rings.append(Ring(matrix, varying, after))
        varying = after
    return ReceptiveField(
        rings=tuple(rings),
        varying=torch.from_numpy(varying),
        constant=torch.from_numpy(np.setdiff1d(np.arange(n_nodes), varying)),
        configurable=torch.from_numpy(np.searchsorted(varying, config_ids)),
    )
