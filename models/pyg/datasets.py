"""The dataset's collections as PyG datasets over the packed store."""

import copy
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_geometric.data import Dataset

from common.errors import UsageError
from data.graph_store.prepare import stored_graphs
from data.read import read_graph
from data.tree import GraphFile, collections_named
from features.pruning import pruning_rule
from features.scaling import SCALINGS, NodeScaler, fit_node_scaler
from models.pyg.graphs import TpuGraph, tpu_graph
from models.training.dataset import LRUCache, bytes_held


class TpuGraphsTile(Dataset):
    """Tile kernels of one split, each read from the packed store when it is asked for.

    Args:
        root: the data folder, which holds npz/.
        split: "train", "valid" or "test"; runtimes of the last are withheld.
        collections: names separated by commas; None = all of this kind that the folder has.
        prune: of layouts: "none" keeps all nodes, "hops-1" configurable ones and their neighbours;
            see features/pruning.py.
        scaling: "none" or None leaves x as stored; a name of features/scaling.py is learned from
            these graphs, so only for the train split: other splits are given its `scaler`.
        transform: called with each graph that is taken, such as a ConfigSampler.
        store: the packed graphs' folder; None = the usual one. What it lacks is packed first.
        cache_mib: graphs are kept in memory up to so many MiB in each process.

    Raises:
        UsageError: no such split, collection, scaling or pruning rule.
        PipelineError: the folder holds no such graph, or a file is damaged.
    """

    kind = "tile"

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        collections: str | None = None,
        prune: str = "none",
        scaling: str | NodeScaler | None = "none",
        transform: Callable[[TpuGraph], Any] | None = None,
        store: str | Path | None = None,
        cache_mib: int = 1024,
    ) -> None:
        if isinstance(scaling, str) and scaling not in ("none", *SCALINGS):
            raise UsageError(f"scaling '{scaling}': expected none, {', '.join(SCALINGS)}")
        if scaling in SCALINGS and split != "train":
            raise UsageError(
                f"scaling '{scaling}' of split {split}: it is learned from train graphs; expected "
                "scaling=train.scaler, of the dataset of these"
            )
        pruning_rule(prune)
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
        if isinstance(scaling, str) and scaling != "none":
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
