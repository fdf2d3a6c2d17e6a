"""Typed graphs: one HLO program or kernel, its compiler configs and their runtimes.

Shapes use one letter per axis: n nodes, e edges, c configs, k configurable nodes, s splits.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data.packing.configs import PackedConfigs
from data.tree import GraphFile

N_NODE_FEATURES = 140
N_LAYOUT_VALUES = 18
N_TILE_VALUES = 24


@dataclass(frozen=True)
class Graph:
    """What layout graphs and tile kernels share."""

    file: GraphFile
    node_feat: NDArray[np.float32]  # (n, 140) as stored: absent dimensions padded with 0
    node_opcode: NDArray[np.uint8]  # (n,) the dataset's own opcode numbers, 0 = unknown
    edge_index: NDArray[np.int64]  # (e, 2); a row [u, v] means that u consumes the output of v
    runtime_ns: NDArray[np.int64]  # (c,); all 0 where runtimes are withheld
    # (c,) which of its file's configs these are; None = all
    rows: NDArray[np.int64] | None = field(default=None, kw_only=True)
    # How many of the last configs are scored beside the others without being counted among them:
    # what a config is compared with (means, rarity, attention) is the others.
    n_guests: int = field(default=0, kw_only=True)
    # What is made of the graph once for all rankers that read it alike, by how they do.
    made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_nodes(self) -> int:
        return len(self.node_opcode)

    @property
    def n_configs(self) -> int:
        return len(self.runtime_ns)

    @property
    def n_counted(self) -> int:
        """Return how many configs are no guests."""
        return self.n_configs - self.n_guests

    @property
    def is_labelled(self) -> bool:
        """Tell whether runtimes are known (the test split's are stored as 0)."""
        return bool(self.runtime_ns.any())


@dataclass(frozen=True)
class LayoutGraph(Graph):
    """A whole program whose configs give tensor layouts to k configurable nodes."""

    # Yields (rows, k, 18) int8 by row index; values -1..5, -1 = left to the compiler. The 18 are
    # the minor-to-major orders of the node's output, input and kernel, 6 each.
    configs: PackedConfigs
    node_config_ids: NDArray[np.int64]  # (k,) positions of the configurable nodes, in config order
    node_splits: NDArray[np.int64]  # (1, s) boundaries of the computations in the node list

    def only(self, rows: NDArray[np.int64]) -> Self:
        """Return the graph with the configs at `rows` (r,) alone, in that order."""
        configs = replace(self.configs, indices=self.configs.indices[rows])
        return replace(self, configs=configs, runtime_ns=self.runtime_ns[rows], rows=rows)


@dataclass(frozen=True)
class TileGraph(Graph):
    """A fused kernel whose configs are tile sizes."""

    config_feat: NDArray[np.float32]  # (c, 24) kernel, output, input: 6 bounds, sum, product each
    runtime_normalizers: NDArray[np.int64]  # (c,) the default config's runtime, 1 where withheld

    @property
    def normalized_runtime(self) -> NDArray[np.float64]:
        """Return (c,) runtimes relative to the compiler's default."""
        return self.runtime_ns / self.runtime_normalizers
