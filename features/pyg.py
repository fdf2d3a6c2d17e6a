"""Datasets for PyTorch Geometric, and a transform that samples configs; see docs/guides/pyg.md.

Each graph is a PyG Data object. Its configs stay packed until they are taken or sampled.

Shapes: n nodes, e edges, k configurable nodes, c configs, u distinct configs, r chosen configs.
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
    """Packed configs of a graph, and their runtimes.

    Attributes:
        packed: Configs of a layout graph, or the (c, 24) float32 configs of a kernel.
        runtime: (c,) float64 in ns, or relative to the default config of a kernel. 0 if withheld.
        first: (u,) int64 ascending first row of each distinct config.
        mean_runtime: (u,) float64 mean over the measurements of each distinct config.
    """

    packed: PackedConfigs | NDArray[np.float32]
    runtime: NDArray[np.float64]
    first: NDArray[np.int64]
    mean_runtime: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.runtime)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} configs)"

    def unpacked(self, rows: NDArray[np.int64]) -> Tensor:
        """Return some configs as a tensor.

        Args:
            rows: (r,) rows of configs.

        Returns:
            (k, r, 18) int8 for a layout graph, (1, r, 24) float32 for a kernel.
        """
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

    def __getattr__(self, key: str) -> Any:
        if key in ("config_feat", "runtime") and self.get("configs") is not None:
            how = "graph.take(rows) or transform=ConfigSampler(n)"
            raise AttributeError(f"graph has no {key}; take configs first: {how}")
        return super().__getattr__(key)

    def take(self, rows: ArrayLike | Tensor) -> Self:
        """Return the graph with some configs unpacked, without the table of all configs.

        Args:
            rows: (r,) rows of configs, or a mask (c,) of bool.

        Raises:
            UsageError: Configs were taken already, there is no row, or a row is not in the graph.
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
        """Return the graph with some configs and other runtimes.

        Args:
            rows: (r,) rows of configs.
            runtime: (r,) runtimes of these configs.
        """
        graph = copy.copy(self)
        graph.config_feat = graph.configs.unpacked(rows)
        del graph.configs
        # A NumPy array, because a tensor costs a batch as much as any other field.
        graph.config_rows = rows
        graph.runtime = torch.from_numpy(runtime[None])
        return graph


def tpu_graph(graph: Graph, *, prune: str = "none", scaler: NodeScaler | None = None) -> TpuGraph:
    """Return a graph with the table of its configs.

    Args:
        graph: Graph from any source.
        prune: Pruning rule for a layout graph.
        scaler: Scaler of x, or None. Layout columns of scaled features are 0, because node_layout
            has them.
    """
    packed: PackedConfigs | NDArray[np.float32]
    if isinstance(graph, LayoutGraph):
        pruned = prune_layout_graph(graph, rule=prune)
        node_feat, opcode, edges = pruned.node_feat, pruned.opcode, pruned.edge_index
        layout_fields = {"config_node_ids": torch.tensor(pruned.config_ids)}
        packed, runtime = graph.configs, graph.runtime_ns.astype(np.float64)
    else:
        assert isinstance(graph, TileGraph)
        node_feat, opcode, edges = graph.node_feat, graph.node_opcode, graph.edge_index
        layout_fields = {}
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
        **layout_fields,
        configs=ConfigTable(packed, runtime, first, group_means(runtime, group)),
        name=graph.file.name,
        collection=graph.file.collection.name,
    )


class ConfigSampler(BaseTransform):
    """Sample `n_configs` configs of a graph without repeats, and unpack only these.

    Args:
        n_configs: Number of configs. A graph with fewer configs gets repeats of infinite runtime.
        seed: Seed of the sample, together with the epoch and the graph. None uses torch's
            generator.
        distinct: True samples distinct configs with mean runtimes. False samples measurements, and
            a config may have several.

    Raises:
        UsageError: `n_configs` is less than 1.
    """

    def __init__(self, n_configs: int, *, seed: int | None = None, distinct: bool = True) -> None:
        if n_configs < 1:
            raise UsageError(f"ConfigSampler: {n_configs} configs; expected at least 1")
        self.n_configs, self.seed, self.distinct = n_configs, seed, distinct
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Change the sample of every graph, also in running workers.

        A sampler without a seed ignores the epoch.
        """
        self._epoch.fill_(epoch)

    def forward(self, data: TpuGraph) -> TpuGraph:
        table = data.configs
        runtime = table.mean_runtime if self.distinct else table.runtime
        generator = None
        if self.seed is not None:
            key = f"{self.seed}:{int(self._epoch)}:{data.collection}:{data.name}"
            generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        sample = torch.randperm(len(runtime), generator=generator).numpy()[: self.n_configs]
        n_missing = self.n_configs - len(sample)
        rows, runtime = table.first[sample] if self.distinct else sample, runtime[sample]
        if n_missing:
            rows = np.pad(rows, (0, n_missing), "edge")
            runtime = np.r_[runtime, [np.inf] * n_missing]
        return data.with_configs(rows, runtime)


class TpuGraphsTile(Dataset):
    """Tile kernels of one split, each read from the packed store on access.

    Args:
        root: Data folder that contains npz/.
        split: "train", "valid" or "test". The runtimes of the test split are withheld.
        collections: Names as a sequence or with commas. None takes all collections of this kind.
        prune: Rule of features/pruning.py for layout graphs. "none" keeps all nodes.
        scaling: "none" or None leaves x as stored. A name of features/scaling.py learns a scaler
            from the train split. Pass this `scaler` to the other splits.
        transform: Function of each graph that is read, for example a ConfigSampler.
        store: Folder of the packed graphs. None is the default store. Missing graphs are packed
            first.
        cache_mib: Limit in MiB of the graphs that each process keeps in memory.

    Raises:
        UsageError: There is no such split, collection, scaling or pruning rule.
        PipelineError: The folder has no such graph, or a file is damaged.
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
        selection, folder = collections_named(collections), Path(store) if store else None
        same_kind = [collection for collection in selection if collection.kind == self.kind]
        if collections and len(same_kind) < len(selection):
            raise UsageError(
                f"collections '{collections}': expected those of {self.kind} configs alone"
            )
        self.files = stored_graphs(Path(root), collections=same_kind, splits=(split,), store=folder)
        self.cache_mib, self.prune = cache_mib, prune
        self.scaler = scaling if isinstance(scaling, NodeScaler) else None
        super().__init__(str(root), transform)
        if isinstance(scaling, str) and is_name:
            stock = (self._read(file).x.numpy() for file in self.files)
            self.scaler = fit_node_scaler(stock, scaling=scaling)

    def len(self) -> int:
        return len(self.files)

    def get(self, idx: int) -> TpuGraph:
        # A copy, because a transform may change the graph and the cache needs the original.
        return copy.copy(self._cache(self.files[idx]))

    def _read(self, file: GraphFile) -> TpuGraph:
        return tpu_graph(read_graph(file), prune=self.prune, scaler=self.scaler)

    @cached_property
    def _cache(self) -> LRUCache[TpuGraph]:
        return LRUCache(
            self._read,
            max_bytes=self.cache_mib << 20,
            size=lambda graph: bytes_held(list(graph.to_dict().values())),
        )

    # Each worker process fills a separate cache.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}


class TpuGraphsLayout(TpuGraphsTile):
    """Layout graphs of one split, with the arguments of TpuGraphsTile."""

    kind = "layout"
