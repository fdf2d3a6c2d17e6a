"""Inputs of tile networks: kernels, and batches of kernels with joined nodes and padded configs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import TileGraph
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.padding import layout_symbols, minor_to_major, node_features
from features.scaling import NodeScaler
from features.statistics.configs import statistics_of
from models.config.networks import TileGnnConfig
from models.training.device import OnDevice, send


class ConfigScaler(nn.Module):
    """Standardise f columns of tile statistics by mean and deviation over the train split."""

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.shift: Tensor
        self.factor: Tensor
        self.register_buffer("shift", torch.zeros(n_columns))
        self.register_buffer("factor", torch.ones(n_columns))

    def fit(self, statistics: Iterable[NDArray[np.float32]]) -> None:
        """Learn from the statistics, (c, f) each, of train kernels, which have equal weight."""
        tables = (table.astype(np.float64) for table in statistics)
        sums = [(table.mean(axis=0), np.square(table).mean(axis=0)) for table in tables]
        mean, mean_square = np.mean(sums, axis=0)  # (f,) each
        deviation = np.sqrt(np.maximum(mean_square - mean**2, 0))
        factor = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0)
        self.shift.copy_(torch.from_numpy(mean))
        self.factor.copy_(torch.from_numpy(factor))

    def forward(self, statistics: Tensor) -> Tensor:
        # Columns that are constant over the train split become 0.
        return (statistics - self.shift).mul_(self.factor).clamp_(-10, 10)


@dataclass(frozen=True)
class TileInputs(OnDevice):
    """One kernel as arrays on the host.

    Only the v statistics that differ between configs are stored.
    """

    node_feat: NDArray[np.float32]  # (n, 140) scaled, 0 in the layout columns
    opcode: NDArray[np.int64]  # (n,)
    layout: NDArray[np.int64]  # (n, 6) embedding rows
    edge_index: NDArray[np.int64]  # (2, e) from producer to consumer
    statistics: NDArray[np.float32]  # (c, v) not scaled
    varying: NDArray[np.int64]  # (v,) columns of `statistics` among all f
    first: NDArray[np.float32]  # (f,) all statistics of the first config
    mean: NDArray[np.float64]  # (1, f) over all configs, or (1, 0) without relative configs
    runtime: NDArray[np.float64]  # (c,) relative to the default config, 0 if withheld

    def write_statistics(self, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write all statistics of the configs in `rows`, (r,), to `out`, (r, f)."""
        out[:] = self.first
        out[:, self.varying] = self.statistics[rows]

    def config_columns(self) -> NDArray[np.float32]:
        """Return the columns of all configs before scaling, (c, f) or (c, 2f)."""
        table = np.empty((len(self.runtime), len(self.first)), np.float32)
        self.write_statistics(np.arange(len(table)), table)
        return relative_too(torch.from_numpy(table), torch.from_numpy(self.mean)).numpy()

    def only(self, rows: NDArray[np.int64]) -> Self:
        """Return the kernel with only the configs in `rows`, (r,), and the same mean."""
        return replace(self, statistics=self.statistics[rows], runtime=self.runtime[rows])


def relative_too(statistics: Tensor, mean: Tensor) -> Tensor:
    """Join statistics with their distances from the kernel's mean.

    Args:
        statistics: (…, f) statistics.
        mean: (…, f) means. Without means, (…, 0), the result is `statistics`.

    Returns:
        (…, 2f) or (…, f).
    """
    if not mean.shape[-1]:
        return statistics
    return torch.cat([statistics, (statistics - mean).float()], dim=-1)


def tile_inputs(
    graph: TileGraph, config: TileGnnConfig, *, nodes: NodeScaler, padding: str = "zero"
) -> TileInputs:
    """Scale a kernel's nodes, and compute its configs' statistics."""
    node_feat = nodes(node_features(graph, padding))
    node_feat[:, MINOR_TO_MAJOR] = 0
    statistics = statistics_of(graph, config.statistics)(np.arange(graph.n_configs))
    varying = np.flatnonzero((statistics != statistics[0]).any(axis=0))
    mean = statistics.mean(axis=0, dtype=np.float64, keepdims=True)
    return TileInputs(
        node_feat=node_feat,
        opcode=graph.node_opcode.astype(np.int64),
        layout=layout_symbols(minor_to_major(graph.node_feat)),
        edge_index=np.ascontiguousarray(graph.edge_index[:, ::-1].T),
        statistics=statistics[:, varying],
        varying=varying,
        first=statistics[0].copy(),
        mean=mean if config.relative_configs else mean[:, :0],
        runtime=graph.runtime,
    )


@dataclass(frozen=True)
class TileBatch:
    """g joined kernels on the network's device: n nodes, e edges, up to r configs per kernel.

    Attributes:
        node_feat, opcode, layout, edge_index: Fields of TileInputs, one kernel after another.
        n_operands: (n, 1) float32 number of edges that end at a node.
        node_kernel: (n,) int64 kernel of each node.
        n_nodes: (g, 1) float32 number of nodes of each kernel.
        node_places: (g, w) int64 nodes of each kernel. Its last node fills the row.
        config_feat: (g, r, f) float32 scaled.
        runtime: (g, r) float64 relative to the default config, infinite for padding. Scores of
            padding are not used.
    """

    node_feat: Tensor
    opcode: Tensor
    layout: Tensor
    edge_index: Tensor
    n_operands: Tensor
    node_kernel: Tensor
    n_nodes: Tensor
    node_places: Tensor
    config_feat: Tensor
    runtime: Tensor


def join(
    kernels: Sequence[TileInputs], rows: Sequence[NDArray[np.int64]], scaler: ConfigScaler
) -> TileBatch:
    """Join kernels into a batch on the scaler's device.

    Args:
        kernels: Kernels of the batch.
        rows: (r,) rows of configs of each kernel.
        scaler: Scaler of the config columns.
    """
    n_nodes = np.array([len(kernel.opcode) for kernel in kernels])
    starts = np.cumsum(n_nodes) - n_nodes
    places = starts[:, None] + np.minimum(np.arange(n_nodes.max()), n_nodes[:, None] - 1)
    shape = len(kernels), max(map(len, rows))
    statistics = np.zeros((*shape, len(kernels[0].first)), np.float32)
    runtime = np.full(shape, np.inf)
    for number, (kernel, part) in enumerate(zip(kernels, rows, strict=True)):
        kernel.write_statistics(part, statistics[number, : len(part)])
        runtime[number, : len(part)] = kernel.runtime[part]
    edges = np.concatenate(
        [kernel.edge_index + start for kernel, start in zip(kernels, starts, strict=True)], axis=1
    )
    of_nodes = "node_feat", "opcode", "layout"
    arrays = {
        **{name: np.concatenate([getattr(k, name) for k in kernels]) for name in of_nodes},
        "edge_index": edges,
        "n_operands": np.bincount(edges[1], minlength=n_nodes.sum()).astype(np.float32)[:, None],
        "node_kernel": np.repeat(np.arange(len(kernels)), n_nodes),
        "n_nodes": n_nodes.astype(np.float32)[:, None],
        "node_places": places,
        "runtime": runtime,
        "statistics": statistics,
        "mean": np.stack([kernel.mean for kernel in kernels]),
    }
    tensors = dict(zip(arrays, send([*arrays.values()], scaler.shift.device), strict=True))
    columns = relative_too(tensors.pop("statistics"), tensors.pop("mean"))
    return TileBatch(**tensors, config_feat=scaler(columns))
