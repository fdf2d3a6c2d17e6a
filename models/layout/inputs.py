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
from data.packing.configs import PackedConfigs
from features.layout_codes import layout_symbols
from features.pruning.store import prune_layout_graph
from features.scaling import NodeScaler
from features.statistics.configs import centred_statistics
from features.statistics.layout import output_bytes
from models.layout.sparse_aggregation import Neighbours
from models.training.device import OnDevice, uploaded


@dataclass(frozen=True)
class LayoutInputs(OnDevice):
    """A pruned graph as tensors, and its distinct configs; m nodes after pruning.

    On the CPU configs and runtimes are read where they are, perhaps mapped from a file; a GPU holds
    both, so that a step sends it no more than which rows it takes.

    Attributes:
        node_feat: (m, 140) float32 scaled; the layout columns are 0, they are embedded instead.
        opcode: (m,) int64.
        layout: (m, 6) int64 embedding rows of each node's own layout, "no dimension" included.
        config_ids: (k,) int64 configurable nodes as positions among the m.
        neighbours: the edges after pruning.
        bytes_share: (m,) float32 each node's share of the bytes that all of them put out.
        vectors: (v, 18) int64 the distinct layout vectors of all configs, as embedding rows.
        configs: all configs by row.
        first: (u,) int64 the first row of each distinct config.
        group: (c,) int64 which distinct config a row is.
        n_guests: how many of the last distinct configs are guests, see LayoutGraph.
        statistics: (u, s) float32 hand-crafted statistics of each distinct config, centred; None if
            nobody reads them.
        runtime_ns: (u,) float64 mean runtime of each distinct config; 0 where withheld.
    """

    node_feat: Tensor
    opcode: Tensor
    layout: Tensor
    config_ids: Tensor
    neighbours: Neighbours
    bytes_share: Tensor
    vectors: Tensor
    configs: PackedConfigs
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    statistics: Tensor | None
    runtime_ns: NDArray[np.float64]
    n_guests: int = 0
    held: "HeldConfigs | None" = None

    def to(self, device: torch.device) -> Self:
        """Return the same with every tensor on `device`."""
        moved = super().to(device)
        if device.type == "cpu":
            return moved
        return replace(moved, held=held_configs(self).to(device))

    def choices(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return which of `vectors` each node takes in the configs at `distinct` (r,); (r, k)."""
        if self.held is None:
            return torch.from_numpy(self.configs.vector_ids(self.first[distinct]))
        return self.held.choices(uploaded(distinct, self.vectors.device))

    def runtimes(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return the mean runtimes of the configs at `distinct` (r,); (r,) float64."""
        if self.held is None:
            return torch.from_numpy(self.runtime_ns[distinct])
        return self.held.runtime_ns[uploaded(distinct, self.vectors.device)]

    def symbols(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return the distinct configs at positions `distinct` (r,) as (r, k, 18) int64 rows."""
        return self.vectors[self.choices(distinct)]


@dataclass(frozen=True)
class HeldConfigs(OnDevice):
    """The configs of one graph and their runtimes, packed, on a GPU."""

    indices: Tensor  # (u, m) uint8 or int32, see PackedConfigs
    meaning: Tensor  # (m · a,) int64 which of LayoutInputs.vectors an index of a column means
    starts: Tensor  # (m,) int64 where a column's begin in `meaning`
    column_of: Tensor  # (k,) int64 the column of each configurable node
    runtime_ns: Tensor  # (u,) float64

    def choices(self, rows: Tensor) -> Tensor:
        """Return which of `vectors` each node takes in the configs at `rows` (r,); (r, k) int64."""
        return self.meaning[self.indices[rows] + self.starts][:, self.column_of]


def held_configs(inputs: LayoutInputs) -> HeldConfigs:
    """Return the distinct configs of a graph and their runtimes as tensors."""
    configs = inputs.configs
    alphabets, indices = configs.alphabets, configs.indices[inputs.first]
    if indices.dtype != np.uint8:  # torch computes with few unsigned types
        indices = indices.astype(np.int32)
    n_columns, width = alphabets.vectors.shape
    arrays = indices, alphabets.vectors.reshape(-1), np.arange(n_columns) * width
    return HeldConfigs(*map(torch.from_numpy, (*arrays, alphabets.column_of, inputs.runtime_ns)))


def layout_inputs(
    graph: LayoutGraph,
    *,
    rule: str,
    scaler: NodeScaler,
    with_statistics: bool = False,
) -> LayoutInputs:
    """Prune and scale a graph and group its equal configs.

    Args:
        rule: pruning rule, see features.pruning.rules.
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
