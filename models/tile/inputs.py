"""Tile kernels as the tile GNN reads them, and batches of them without padding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import TileGraph
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.node_layouts import Padding, minor_to_major, padded
from features.layout_codes import layout_symbols
from features.scaling import NodeScaler
from features.statistics.configs import statistics_names, statistics_of
from models.config.networks import TileGnnConfig
from models.training.device import OnDevice


class ConfigScaler(nn.Module):
    """Standardises f columns of tile statistics by mean and deviation over the train split."""

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.shift: Tensor
        self.factor: Tensor
        self.register_buffer("shift", torch.zeros(n_columns))
        self.register_buffer("factor", torch.ones(n_columns))

    def fit(self, statistics: Iterable[NDArray[np.float32]]) -> None:
        """Learn from the (c, f) statistics of train kernels, each kernel weighing the same."""
        sums = [
            (table.mean(axis=0, dtype=np.float64), np.square(table.astype(np.float64)).mean(axis=0))
            for table in statistics
        ]
        mean, mean_square = np.mean(sums, axis=0)  # (f,) each
        deviation = np.sqrt(np.maximum(mean_square - mean**2, 0))
        factor = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0)
        self.shift.copy_(torch.from_numpy(mean))
        self.factor.copy_(torch.from_numpy(factor))

    def forward(self, statistics: Tensor) -> Tensor:
        """Scale (c, f) statistics; columns that are constant over the train split become 0."""
        return ((statistics - self.shift) * self.factor).clamp(-10, 10)


@dataclass(frozen=True)
class TileInputs(OnDevice):
    """One kernel as tensors.

    Of f statistics most are the same for all configs of a kernel, and how far each is from its mean
    follows from the others: v of f columns are kept, and a step makes what it takes of them.

    Attributes:
        node_feat: (n, 140) float32 scaled; layout columns are 0, they are embedded instead.
        opcode: (n,) int64.
        layout: (n, 6) int64 embedding rows of node layouts.
        edge_index: (2, e) int64, from producer to consumer.
        statistics: (c, v) float32 those that differ between configs, as computed.
        varying: (v,) int64 which of the f columns they are.
        first: (1, f) float32 all statistics of the first config.
        mean: (1, f) float64 of all configs, where they are read relative to it; else None.
        scaler: the network's, of the columns that it reads.
        runtime: (c,) float64 relative to the default config; 0 where withheld.
    """

    node_feat: Tensor
    opcode: Tensor
    layout: Tensor
    edge_index: Tensor
    statistics: Tensor
    varying: Tensor
    first: Tensor
    mean: Tensor | None
    scaler: ConfigScaler
    runtime: Tensor

    def config_feat(self, rows: Tensor) -> Tensor:
        """Return rows (r,) of `config_columns`, scaled; (r, f) or (r, 2f) float32."""
        whole = self.first.expand(len(rows), -1).index_copy(1, self.varying, self.statistics[rows])
        if self.mean is not None:
            whole = torch.cat([whole, (whole - self.mean).float()], dim=1)
        return self.scaler(whole)

    def only(self, rows: Tensor) -> Self:
        """Return the kernel with the configs at `rows` (r,) alone, its mean as before."""
        return replace(self, statistics=self.statistics[rows], runtime=self.runtime[rows])


def config_columns(graph: TileGraph, config: TileGnnConfig) -> NDArray[np.float32]:
    """Return (c, f) statistics of a kernel's configs, or (c, 2f) of them if they are relative.

    The second half is each config's difference to the mean of its kernel's: what a bound is among
    those that the kernel has says more than its size.
    """
    statistics = _statistics(graph, config)
    if not config.relative_configs:
        return statistics
    return np.concatenate([statistics, statistics - _mean(statistics)], axis=1, dtype=np.float32)


def _statistics(graph: TileGraph, config: TileGnnConfig) -> NDArray[np.float32]:
    return statistics_of(graph, config.statistics)(np.arange(graph.n_configs))


def _mean(statistics: NDArray[np.float32]) -> NDArray[np.float64]:
    return statistics.mean(axis=0, dtype=np.float64, keepdims=True)


def n_config_columns(config: TileGnnConfig) -> int:
    """Return how many columns `config_columns` has."""
    return len(statistics_names("tile", config.statistics)) * (1 + config.relative_configs)


def tile_inputs(
    graph: TileGraph,
    config: TileGnnConfig,
    *,
    nodes: NodeScaler,
    configs: ConfigScaler,
    padding: Padding = "minus-one",
) -> TileInputs:
    """Scale a kernel's nodes and configs as the network of `config` reads them."""
    scaled = nodes(graph.node_feat)
    scaled[:, MINOR_TO_MAJOR] = 0
    statistics = _statistics(graph, config)
    varying = np.flatnonzero((statistics != statistics[0]).any(axis=0))
    return TileInputs(
        node_feat=torch.from_numpy(scaled),
        opcode=torch.from_numpy(graph.node_opcode.astype(np.int64)),
        layout=torch.from_numpy(layout_symbols(padded(minor_to_major(graph.node_feat), padding))),
        edge_index=torch.from_numpy(np.ascontiguousarray(graph.edge_index[:, ::-1].T)),
        statistics=torch.from_numpy(statistics[:, varying]),
        varying=torch.from_numpy(varying),
        first=torch.from_numpy(statistics[:1].copy()),
        mean=torch.from_numpy(_mean(statistics)) if config.relative_configs else None,
        scaler=configs,
        runtime=torch.from_numpy(graph.normalized_runtime),
    )


@dataclass(frozen=True)
class TileBatch:
    """g kernels joined: nodes and configs of all, and which kernel each belongs to.

    The rows of a kernel stand together: n_nodes, n_edges and n_configs say how many each has.
    """

    node_feat: Tensor
    opcode: Tensor
    layout: Tensor
    edge_index: Tensor
    node_kernel: Tensor
    config_feat: Tensor
    config_kernel: Tensor
    n_nodes: list[int]
    n_edges: list[int]
    n_configs: list[int]

    @property
    def n_kernels(self) -> int:
        """Return g."""
        return len(self.n_nodes)


def join(kernels: Sequence[TileInputs], rows: Sequence[Tensor]) -> TileBatch:
    """Join kernels on one device into a batch, of each the configs at `rows` (r,) int64."""
    device = kernels[0].opcode.device
    n_nodes = [len(kernel.opcode) for kernel in kernels]
    starts = np.cumsum([0, *n_nodes])
    n_configs = [len(part) for part in rows]
    numbers = torch.arange(len(kernels))
    edges = [k.edge_index + int(start) for k, start in zip(kernels, starts, strict=False)]
    return TileBatch(
        node_feat=torch.cat([kernel.node_feat for kernel in kernels]),
        opcode=torch.cat([kernel.opcode for kernel in kernels]),
        layout=torch.cat([kernel.layout for kernel in kernels]),
        edge_index=torch.cat(edges, dim=1),
        node_kernel=numbers.repeat_interleave(torch.tensor(n_nodes)).to(device),
        config_feat=torch.cat(
            [kernel.config_feat(part) for kernel, part in zip(kernels, rows, strict=True)]
        ),
        config_kernel=numbers.repeat_interleave(torch.tensor(n_configs)).to(device),
        n_nodes=n_nodes,
        n_edges=[kernel.edge_index.shape[1] for kernel in kernels],
        n_configs=n_configs,
    )
