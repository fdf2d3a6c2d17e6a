"""One layout graph as the layout GNN reads it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.graphs.distinct import distinct_configs, group_means
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.packing import PackedConfigs, layout_symbols
from features.pruning import prune_layout_graph
from features.scaling import NodeScaler
from features.statistics.configs import centred_statistics
from features.statistics.layout import output_bytes
from models.layout.sparse_aggregation import Neighbours
from models.training.device import OnDevice, uploaded


@dataclass(frozen=True, kw_only=True)
class NodeInputs(OnDevice):
    """A program's m nodes as tensors, k of them configurable.

    Attributes:
        node_feat: (m, 140) float32 scaled; the layout columns are 0, they are embedded instead.
        opcode: (m,) int64.
        layout: (m, 6) int64 embedding rows of each node's own layout, "no dimension" included.
        config_ids: (k,) int64 configurable nodes as positions among the m.
        neighbours: the edges.
    """

    node_feat: Tensor
    opcode: Tensor
    layout: Tensor
    config_ids: Tensor
    neighbours: Neighbours


@dataclass(frozen=True, kw_only=True)
class ConfigInputs(OnDevice):
    """The configs of a graph.

    On the CPU configs and runtimes are read where they are, perhaps mapped from a file; a GPU holds
    both, so that a step sends it no more than which rows it takes.

    Attributes:
        vectors: (v, 18) int64 the distinct layout vectors of all configs, as embedding rows.
        configs: all configs by row.
        first: (u,) int64 the first row of each distinct config.
        group: (c,) int64 which distinct config a row is.
        n_guests: how many of the last distinct configs are guests, see LayoutGraph.
        runtime_ns: (u,) float64 mean runtime of each distinct config; 0 where withheld.
        held: on a GPU, its packed `indices` (u, a) of distinct configs, what an index means among
            `vectors`, where a column's begin in that, each configurable node's column; runtimes.
    """

    vectors: Tensor
    configs: PackedConfigs
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    n_guests: int
    runtime_ns: NDArray[np.float64]
    held: tuple[Tensor, ...] | None = None

    def to(self, device: torch.device) -> Self:
        """Return the same with every tensor on `device`."""
        moved = super().to(device)
        if device.type == "cpu":
            return moved
        alphabets, indices = self.configs.alphabets, self.configs.indices[self.first]
        if indices.dtype != np.uint8:  # torch computes with few unsigned types
            indices = indices.astype(np.int32)
        n_columns, width = alphabets.vectors.shape
        meaning, starts = alphabets.vectors.reshape(-1), np.arange(n_columns) * width
        arrays = indices, meaning, starts, alphabets.column_of, self.runtime_ns
        held = tuple(torch.from_numpy(array).to(device) for array in arrays)
        return replace(moved, held=held)

    def choices(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return which of `vectors` each node takes in the configs at `distinct` (r,); (r, k)."""
        if self.held is None:
            return torch.from_numpy(self.configs.vector_ids(self.first[distinct]))
        indices, meaning, starts, column_of, _ = self.held
        rows = uploaded(distinct, self.vectors.device)
        return meaning[indices[rows] + starts][:, column_of]

    def runtimes(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return the mean runtimes of the configs at `distinct` (r,); (r,) float64."""
        if self.held is None:
            return torch.from_numpy(self.runtime_ns[distinct])
        return self.held[-1][uploaded(distinct, self.vectors.device)]

    def symbols(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return the distinct configs at positions `distinct` (r,) as (r, k, 18) int64 rows."""
        return self.vectors[self.choices(distinct)]


@dataclass(frozen=True, kw_only=True)
class LayoutInputs(NodeInputs, ConfigInputs):
    """A pruned graph, m nodes after pruning, and its distinct configs.

    Attributes:
        bytes_share: (m,) float32 each node's share of the bytes that all of them put out.
        statistics: (u, s) float32 hand-crafted statistics of each distinct config, centred; None if
            nobody reads them.
    """

    bytes_share: Tensor
    statistics: Tensor | None


def layout_inputs(
    graph: LayoutGraph,
    *,
    rule: str,
    scaler: NodeScaler,
    with_statistics: bool = False,
) -> LayoutInputs:
    """Prune and scale a graph and group its equal configs.

    Args:
        rule: pruning rule, see features.pruning.
    """
    pruned, nodes = prune_layout_graph(graph, rule=rule)
    scaled = scaler(nodes.node_feat)
    scaled[:, MINOR_TO_MAJOR] = 0
    first, group = distinct_configs(graph)
    edges, config_ids = map(torch.from_numpy, (pruned.edge_index, pruned.config_ids))
    sizes = output_bytes(nodes.node_feat)
    shares = (sizes / max(sizes.sum(), 1.0)).astype(np.float32)
    return LayoutInputs(
        node_feat=torch.from_numpy(scaled),
        opcode=torch.from_numpy(nodes.opcode.astype(np.int64)),
        layout=torch.from_numpy(layout_symbols(nodes.minor_to_major)),
        config_ids=config_ids,
        neighbours=Neighbours(edges, len(pruned.kept), varying=config_ids),
        bytes_share=torch.from_numpy(shares),
        vectors=torch.from_numpy(layout_symbols(graph.configs.vectors)),
        configs=graph.configs,
        first=first,
        group=group,
        statistics=torch.from_numpy(centred_statistics(graph, first)) if with_statistics else None,
        runtime_ns=group_means(graph.runtime_ns, group),
        n_guests=int((first >= graph.n_counted).sum()),
    )
