"""Typed graphs: one HLO program or kernel, its compiler configs and their runtimes.

Their arrays must be the same wherever they come from, an npz file or the store. Shapes use one
letter per axis: n nodes, e edges, c configs of k configurable nodes in m columns, u distinct layout
vectors, s splits.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import MINOR_TO_MAJOR
from data.packing import HIGHEST, LOWEST, PackedConfigs
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


Arrays = Mapping[str, NDArray[Any]]
# Told which array is wrong, by its field of the graph, and how; raises a PipelineError.
Fail = Callable[[str, str], NoReturn]
# Of each array its dtype and its axes: a length, or a letter that stands for one.
Schema = Mapping[str, tuple[type[np.generic], tuple[str | int, ...]]]
SHARED: Schema = {
    "node_opcode": (np.uint8, ("n",)),
    "node_feat": (np.float32, ("n", N_NODE_FEATURES)),
    "edge_index": (np.int64, ("e", 2)),
    "runtime_ns": (np.int64, ("c",)),
}
LAYOUT: Schema = {
    **SHARED,
    "node_config_ids": (np.int64, ("k",)),
    "node_splits": (np.int64, (1, "s")),
}
TILE: Schema = {
    **SHARED,
    "config_feat": (np.float32, ("c", N_TILE_VALUES)),
    "runtime_normalizers": (np.int64, ("c",)),
}


def check_layout(arrays: Arrays, fail: Fail) -> None:
    """Check the fields of a LayoutGraph but its configs; shapes and dtypes are right already."""
    _check_shared(arrays, fail)
    n_nodes = len(arrays["node_opcode"])
    ids = arrays["node_config_ids"]
    if len(ids) == 0:
        fail("node_config_ids", "is empty; expected at least one configurable node")
    check_positions("node_config_ids", ids, n_nodes, fail)
    if len(np.unique(ids)) != len(ids):
        fail("node_config_ids", "names a node twice; expected each configurable node once")
    bounds = arrays["node_splits"][0]
    grows = (np.diff(bounds) >= 0).all()
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != n_nodes or not grows:
        fail(
            "node_splits",
            f"is {bounds[:8].tolist()}…; expected boundaries from 0 to {n_nodes}, ascending",
        )


def check_tile(arrays: Arrays, fail: Fail) -> None:
    """Check the fields of a TileGraph; shapes and dtypes are right already."""
    _check_shared(arrays, fail)
    _check_finite("config_feat", arrays["config_feat"], fail)
    normalizers = arrays["runtime_normalizers"]
    if (normalizers <= 0).any():
        row = int(np.argmax(normalizers <= 0))
        fail("runtime_normalizers", f"row {row} is {normalizers[row]}; expected a runtime above 0")


def _check_shared(arrays: Arrays, fail: Fail) -> None:
    n_nodes = len(arrays["node_opcode"])
    if n_nodes == 0:
        fail("node_opcode", "is empty; expected at least one node")
    _check_finite("node_feat", arrays["node_feat"], fail)
    layouts = arrays["node_feat"][:, MINOR_TO_MAJOR]
    good = (layouts >= LOWEST) & (layouts <= HIGHEST) & (layouts == np.rint(layouts))
    if not good.all():
        row, place = (int(i) for i in np.argwhere(~good)[0])
        fail(
            "node_feat",
            f"row {row}, column {MINOR_TO_MAJOR.start + place} is {layouts[row, place]}; "
            f"expected a dimension number {LOWEST}..{HIGHEST}",
        )
    check_positions("edge_index", arrays["edge_index"], n_nodes, fail)
    runtime_ns = arrays["runtime_ns"]
    if len(runtime_ns) == 0:
        fail("runtime_ns", "has zero configs; expected at least one")
    bad = runtime_ns < 0 if not runtime_ns.any() else runtime_ns <= 0
    if bad.any():
        row = int(np.argmax(bad))
        fail(
            "runtime_ns",
            f"row {row} is {runtime_ns[row]}; expected runtimes all above 0, or all 0 (withheld)",
        )


def _check_finite(name: str, values: NDArray[np.float32], fail: Fail) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        fail(name, f"row {row}, column {column} is {values[row, column]}; expected a finite number")


def check_positions(name: str, values: NDArray[np.int64], n_nodes: int, fail: Fail) -> None:
    """Check that all of `values`, of any shape, are positions of n nodes."""
    outside = (values < 0) | (values >= n_nodes)
    if outside.any():
        row = int(np.argwhere(outside)[0, 0])
        expected = f"expected node positions 0..{n_nodes - 1}"
        fail(name, f"row {row} is {values[row].tolist()}; {expected}")
