"""A layout graph cut into segments of consecutive nodes, and how far configs reach in each.

Graph Segment Training (Cao et al., NeurIPS 2023) cuts a graph too large for one training step into
parts of bounded size. A segment keeps the edges among its nodes; those between segments are lost.

A config sets the layouts of k configurable nodes. One round of message passing carries that one
edge further: after l rounds only nodes within l edges of a configurable one differ between
configs, and are computed per config. All others have one value, (n, 1, h).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.sparse_aggregation import Neighbours, SplitAggregation, joint_matrix
from models.training.device import OnDevice


class Ring(SplitAggregation):
    """What the nodes that vary after a block read: of those that vary before it, and of the rest.

    Attributes:
        varying: (b,) int64 the nodes that vary before the block.
        after: (a,) int64 ascending, those that vary after it; contains all of `varying`.
        place: (b,) int64 where each of the b nodes stands in `after`.
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
    """How far configs reach."""

    rings: tuple[Ring, ...]  # one per block; none where there is no configurable node
    reached: Tensor  # (a,) int64 ascending, the nodes that vary after the last block
    constant: Tensor  # (n - a,) int64 ascending, all others
    configurable: Tensor  # (k,) int64 where the configurable nodes stand in `reached`


@dataclass(frozen=True)
class Segment(OnDevice):
    """Some nodes of a graph of n nodes, s segments and k configurable nodes.

    Attributes:
        inputs: its nodes and edges; the configs, runtimes and vectors are the whole graph's.
        columns: (j,) int64 which of the k configurable nodes lie in it, in the order of
            inputs.config_ids.
    """

    inputs: LayoutInputs
    columns: Tensor
    reach: ReceptiveField
    n_nodes: int
    n_segments: int
    n_configurable: int

    @property
    def varies(self) -> bool:
        """Tell whether configs differ in it."""
        return len(self.columns) > 0


@dataclass(frozen=True)
class SegmentedGraph(OnDevice):
    """A graph as its segments, of which there is at least one."""

    segments: tuple[Segment, ...]

    def to(self, device: torch.device) -> Self:
        """Return the same with every tensor on `device`, vectors once for all segments."""
        vectors = self.shared.vectors.to(device)
        given = (
            replace(part, inputs=replace(part.inputs, vectors=vectors)) for part in self.segments
        )
        return replace(self, segments=tuple(part.to(device) for part in given))

    @property
    def shared(self) -> LayoutInputs:
        """Return what every segment knows of the whole graph: its configs and runtimes."""
        return self.segments[0].inputs


def segmented(
    graph: LayoutGraph,
    *,
    rule: str,
    scaler: NodeScaler,
    segment_nodes: int,
    depth: int,
) -> SegmentedGraph:
    """Prune and scale a graph as `layout_inputs` does, and cut it."""
    whole = layout_inputs(graph, rule=rule, scaler=scaler)
    edges = whole.neighbours.edge_index.numpy()
    parts = cut(len(whole.opcode), segment_nodes)
    part_of, position = np.empty((2, len(whole.opcode)), dtype=np.int64)
    for number, part in enumerate(parts):
        part_of[part], position[part] = number, np.arange(len(part))
    inside = edges[part_of[edges[:, 0]] == part_of[edges[:, 1]]]
    edge_part, column_part = part_of[inside[:, 0]], part_of[whole.config_ids.numpy()]
    segments = []
    for number, part in enumerate(parts):
        own_edges = position[inside[edge_part == number]]
        columns = np.flatnonzero(column_part == number)
        config_ids = position[whole.config_ids.numpy()[columns]]
        inputs = _part(whole, part, own_edges, config_ids)
        segments.append(
            Segment(
                inputs=inputs,
                columns=torch.from_numpy(columns),
                reach=receptive_field(inputs.neighbours, depth),
                n_nodes=len(part_of),
                n_segments=len(parts),
                n_configurable=len(column_part),
            )
        )
    return SegmentedGraph(tuple(segments))


def _part(
    whole: LayoutInputs,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    config_ids: NDArray[np.int64],
) -> LayoutInputs:
    """Return the inputs of the nodes at `nodes` (m,), with edges and config_ids among them."""
    index, varying = torch.from_numpy(nodes), torch.from_numpy(config_ids)
    return replace(
        whole,
        node_feat=whole.node_feat[index],
        opcode=whole.opcode[index],
        layout=whole.layout[index],
        bytes_share=whole.bytes_share[index],
        config_ids=varying,
        neighbours=Neighbours(torch.from_numpy(edges), len(nodes), varying=varying),
    )


def cut(n_nodes: int, segment_nodes: int) -> list[NDArray[np.int64]]:
    """Cut n nodes into parts of nearly equal size, at most `segment_nodes`, by their position.

    The dataset lists nodes after those that they consume, so parts follow the program.
    """
    return np.array_split(np.arange(n_nodes), max(1, -(-n_nodes // segment_nodes)))


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
