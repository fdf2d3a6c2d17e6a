"""Datasets for PyTorch Geometric, and a transform that draws configs; see docs/guides/pyg.md.

A graph is PyG's Data, its configs packed until some are taken or drawn.

Shapes: n nodes, e edges, k configurable nodes, c configs, u distinct ones, r that are taken.
"""

import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch_geometric.data import Data, Dataset
from torch_geometric.transforms import BaseTransform

from common.errors import UsageError
from data.cache import LRUCache, bytes_held
from data.graph_store.prepare import stored_graphs
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs, group_means
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import PackedConfigs
from data.tree import GraphFile, collections_named
from features.padding import minor_to_major
from features.pruning import prune_layout_graph, pruning_rule
from features.scaling import SCALINGS, NodeScaler, fit_node_scaler


@dataclass(frozen=True)
class ConfigTable:
    """All configs of a graph, as packed as the store has them, and their runtimes.

    Attributes:
        packed: Configs of a layout graph; of a kernel its configs, (c, 24) float32.
        runtime: (c,) float64 ns; of a kernel relative to its default config. 0 where withheld.
        first: (u,) int64 the first row of each distinct config, ascending.
        mean_runtime: (u,) float64 over the measurements of each distinct config.
    """

    packed: PackedConfigs | NDArray[np.float32]
    runtime: NDArray[np.float64]
    first: NDArray[np.int64]
    mean_runtime: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.runtime)

    def unpacked(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the configs at `rows` (r,): (k, r, 18) int8; of a kernel (1, r, 24) float32."""
        if isinstance(self.packed, PackedConfigs):
            ids = self.packed.vector_ids(rows).T  # (k, r)
            return torch.from_numpy(self.packed.vectors.take(ids, axis=0))
        return torch.from_numpy(self.packed[None, rows])


class TpuGraph(Data):
    """One program or kernel; docs/guides/pyg.md lists its fields."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "config_node_ids":
            return self.num_nodes
        return super().__inc__(key, value, *args, **kwargs)

    def take(self, rows: ArrayLike | Tensor) -> Self:
        """Return the graph with some configs unpacked in place of the table of all.

        Args:
            rows: (r,) rows of configs, or a mask (c,) of bool.

        Raises:
            UsageError: Configs were taken already, no row is given, or one is none of the graph's.
        """
        table = self.get("configs")
        if table is None:
            raise UsageError(f"{self.name}: configs were taken already; expected a graph as read")
        index = np.asarray(rows)
        if index.dtype == bool and index.shape == (len(table),):
            index = np.flatnonzero(index)
        is_list = index.ndim == 1 and index.dtype.kind in "iu" and len(index)
        if not is_list or ((index < 0) | (index >= len(table))).any():
            raise UsageError(
                f"{self.name}: expected one or more rows from 0 to {len(table) - 1}, or a mask"
            )
        index = index.astype(np.int64)
        return self.with_configs(index, table.runtime[index])

    def with_configs(self, rows: NDArray[np.int64], runtime: NDArray[np.float64]) -> Self:
        """Return the graph with the configs at `rows` (r,) and these runtimes (r,)."""
        graph = copy.copy(self)
        graph.config_feat = graph.configs.unpacked(rows)
        del graph.configs
        graph.config_rows = rows  # no tensor, which would cost a batch as much as any other
        graph.runtime = torch.from_numpy(runtime[None])
        return graph


def tpu_graph(graph: Graph, *, prune: str = "none", scaler: NodeScaler | None = None) -> TpuGraph:
    """Return a graph, from wherever it was read, with the table of its configs.

    Args:
        scaler: of x; its layout columns then become 0, since node_layout has them.
    """
    packed: PackedConfigs | NDArray[np.float32]
    if isinstance(graph, LayoutGraph):
        pruned = prune_layout_graph(graph, rule=prune)
        node_feat, opcode, edges = pruned.node_feat, pruned.opcode, pruned.edge_index
        own = {"config_node_ids": torch.tensor(pruned.config_ids)}
        packed, runtime = graph.configs, graph.runtime_ns.astype(np.float64)
    else:
        assert isinstance(graph, TileGraph)
        node_feat, opcode, edges, own = graph.node_feat, graph.node_opcode, graph.edge_index, {}
        packed, runtime = graph.config_feat, graph.runtime
    x = scaler(node_feat) if scaler else node_feat.copy()
    if scaler:
        x[:, MINOR_TO_MAJOR] = 0
    first, group = distinct_configs(graph)
    return TpuGraph(
        x=torch.from_numpy(x),
        opcode=torch.from_numpy(opcode.astype(np.int64)),
        node_layout=torch.from_numpy(minor_to_major(node_feat)),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges[:, ::-1].T)),
        **own,
        configs=ConfigTable(packed, runtime, first, group_means(runtime, group)),
        name=graph.file.name,
        collection=graph.file.collection.name,
    )


class ConfigSampler(BaseTransform):
    """Draw `n_configs` configs of a graph, none twice, and unpack them alone; docs/guides/pyg.md.

    Args:
        n_configs: Number of configs; a graph with fewer is filled up with repeats of infinite
            runtime.
        seed: With a seed, what is drawn depends on it, the epoch and the graph alone; with None on
            torch's own generator.
        distinct: Draw among distinct configs, each with its mean runtime; else among all
            measurements, of which one config may have several.

    Raises:
        UsageError: Fewer than one config is asked for.
    """

    def __init__(self, n_configs: int, *, seed: int | None = None, distinct: bool = True) -> None:
        if n_configs < 1:
            raise UsageError(f"ConfigSampler: {n_configs} configs; expected at least 1")
        self.n_configs, self.seed, self.distinct = n_configs, seed, distinct
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Draw other configs from now on, in running workers too; for a sampler with a seed."""
        self._epoch.fill_(epoch)

    def forward(self, data: TpuGraph) -> TpuGraph:
        table = data.configs
        runtime = table.mean_runtime if self.distinct else table.runtime
        generator = None
        if self.seed is not None:
            drawn_by = f"{self.seed}:{int(self._epoch)}:{data.collection}:{data.name}"
            generator = torch.Generator().manual_seed(zlib.crc32(drawn_by.encode()))
        drawn = torch.randperm(len(runtime), generator=generator).numpy()[: self.n_configs]
        short = self.n_configs - len(drawn)
        rows, runtime = table.first[drawn] if self.distinct else drawn, runtime[drawn]
        if short:
            rows, runtime = np.pad(rows, (0, short), "edge"), np.r_[runtime, [np.inf] * short]
        return data.with_configs(rows, runtime)


class TpuGraphsTile(Dataset):
    """Tile kernels of one split, each read from the packed store when it is asked for.

    Args:
        root: Data folder, which holds npz/.
        split: "train", "valid" or "test"; runtimes of the last are withheld.
        collections: Names, or one text of them with commas; None = all of this kind that the folder
            has.
        prune: Rule of features/pruning.py for layouts; "none" keeps all nodes.
        scaling: "none" or None leaves x as stored; a name of features/scaling.py is learned from
            these graphs, so only for the train split: other splits are given its `scaler`.
        transform: Called with each graph that is taken, such as a ConfigSampler.
        store: Folder of the packed graphs; None = the usual one. What it lacks is packed first.
        cache_mib: Graphs are kept in memory up to so many MiB in each process.

    Raises:
        UsageError: There is no such split, collection, scaling or pruning rule.
        PipelineError: The folder holds no such graph, or a file is damaged.
    """

    kind = "tile"

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        collections: str | Sequence[str] | None = None,
        prune: str = "none",
        scaling: str | NodeScaler | None = "none",
        transform: Callable[[TpuGraph], Any] | None = None,
        store: str | Path | None = None,
        cache_mib: int = 1024,
    ) -> None:
        is_name = isinstance(scaling, str) and scaling != "none"
        if is_name and (scaling not in SCALINGS or split != "train"):
            raise UsageError(
                f"scaling '{scaling}' of split {split}: expected one of {', '.join(SCALINGS)} for "
                "the train split, and scaling=train.scaler for the others"
            )
        pruning_rule(prune)
        if collections is not None and not isinstance(collections, str):
            collections = ",".join(collections)
        named, folder = collections_named(collections), Path(store) if store else None
        chosen = [collection for collection in named if collection.kind == self.kind]
        if collections and len(chosen) < len(named):
            raise UsageError(
                f"collections '{collections}': expected those of {self.kind} configs alone"
            )
        self.files = stored_graphs(Path(root), collections=chosen, splits=(split,), store=folder)
        self.cache_mib, self.prune = cache_mib, prune
        self.scaler = scaling if isinstance(scaling, NodeScaler) else None
        super().__init__(str(root), transform)
        if isinstance(scaling, str) and is_name:
            stock = (self._read(file).x.numpy() for file in self.files)
            self.scaler = fit_node_scaler(stock, scaling=scaling)

    def len(self) -> int:
        return len(self.files)

    def get(self, idx: int) -> TpuGraph:
        return copy.copy(self._cache(self.files[idx]))  # what is kept stays as it is

    def _read(self, file: GraphFile) -> TpuGraph:
        return tpu_graph(read_graph(file), prune=self.prune, scaler=self.scaler)

    @cached_property
    def _cache(self) -> LRUCache[TpuGraph]:
        return LRUCache(
            self._read,
            max_bytes=self.cache_mib << 20,
            size=lambda graph: bytes_held(list(graph.to_dict().values())),
        )

    def __getstate__(self) -> dict[str, Any]:  # for workers: each fills a cache of its own
        return {name: value for name, value in vars(self).items() if name != "_cache"}


class TpuGraphsLayout(TpuGraphsTile):
    """Layout graphs of one split; takes what TpuGraphsTile does."""

    kind = "layout"
