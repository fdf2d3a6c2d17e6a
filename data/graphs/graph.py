"""Typed graphs: one HLO program or kernel, its compiler configs and their runtimes.

Configs are equal by content: many are measured twice, and a file may have them in any order.

The arrays are the same from an npz file and from the store. Shapes use one letter per axis: n
nodes, e edges, c configs of k configurable nodes in m columns, u distinct layout vectors, s splits.
"""

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import HIGHEST, LOWEST, PackedConfigs
from data.tree import GraphFile

N_NODE_FEATURES = 140
N_LAYOUT_VALUES = 18
N_TILE_VALUES = 24
# Configurable nodes by nodes: the largest published graph has 3,143 of 43,615. The seven real files
# at hand have .020 to .078.
CONFIGURABLE_SHARE = 3_143 / 43_615
# Rounds in which each node receives the hashes of its neighbours.
ROUNDS = 2


@dataclass(frozen=True)
class Graph:
    """Base of layout graphs and tile kernels."""

    file: GraphFile
    node_feat: NDArray[np.float32]  # (n, 140) as stored: absent dimensions padded with 0
    node_opcode: NDArray[np.uint8]  # (n,) the dataset's own opcode numbers, 0 = unknown
    edge_index: NDArray[np.int64]  # (e, 2); a row [u, v] means that u consumes the output of v
    runtime_ns: NDArray[np.int64]  # (c,); all 0 where runtimes are withheld
    # (c,) positions of the configs in the file; None = all
    rows: NDArray[np.int64] | None = field(default=None, kw_only=True)
    # The last configs are query configs. They are scored, but means and attention compare each
    # config with the other ones only.
    n_query_configs: int = field(default=0, kw_only=True)
    # Cached values of rankers, by their kind and settings.
    cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_nodes(self) -> int:
        return len(self.node_opcode)

    @property
    def n_configs(self) -> int:
        return len(self.runtime_ns)

    @property
    def n_counted(self) -> int:
        """Return the number of configs that are no query configs."""
        return self.n_configs - self.n_query_configs

    @property
    def is_labelled(self) -> bool:
        """Return whether runtimes are known (those of the test split are stored as 0)."""
        return bool(self.runtime_ns.any())

    @property
    def runtime(self) -> NDArray[Any]:
        """Return the runtimes to compare, (c,); for tiles relative to the compiler's default."""
        return self.runtime_ns


@dataclass(frozen=True)
class LayoutGraph(Graph):
    """A whole program whose configs give tensor layouts to k configurable nodes."""

    # Yields (rows, k, 18) int8 by row index; values -1..5, -1 = left to the compiler. The 18 are
    # the minor-to-major orders of the node's output, input and kernel, 6 each.
    configs: PackedConfigs
    node_config_ids: NDArray[np.int64]  # (k,) positions of the configurable nodes, in config order
    node_splits: NDArray[np.int64]  # (1, s) boundaries of the computations in the node list

    def only(self, rows: NDArray[np.int64]) -> Self:
        """Return the graph with only the configs at `rows` (r,), in that order."""
        configs = replace(self.configs, indices=self.configs.indices[rows])
        return replace(self, configs=configs, runtime_ns=self.runtime_ns[rows], rows=rows)


@dataclass(frozen=True)
class TileGraph(Graph):
    """A fused kernel whose configs are tile sizes."""

    config_feat: NDArray[np.float32]  # (c, 24) kernel, output, input: 6 bounds, sum, product each
    runtime_normalizers: NDArray[np.int64]  # (c,) the default config's runtime, 1 where withheld

    @property
    def runtime(self) -> NDArray[np.float64]:
        return self.runtime_ns / self.runtime_normalizers


Arrays = Mapping[str, NDArray[Any]]
# Raises a PipelineError about an array. The arguments are the field of the graph and the fault.
Fail = Callable[[str, str], NoReturn]
# The dtype and the axes of each array. An axis is a length or a letter.
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
    """Check the fields of a LayoutGraph except its configs; `arrays` follow LAYOUT."""
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
    """Check the fields of a TileGraph; `arrays` follow TILE."""
    _check_shared(arrays, fail)
    _check_finite("config_feat", arrays["config_feat"], fail)


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
    check_runtimes(arrays, fail)


def check_runtimes(arrays: Arrays, fail: Fail) -> None:
    """Check the runtimes of a graph, and the normalizers of a kernel."""
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
    normalizers = arrays.get("runtime_normalizers", runtime_ns[:0])
    if (normalizers <= 0).any():
        row = int(np.argmax(normalizers <= 0))
        fail("runtime_normalizers", f"row {row} is {normalizers[row]}; expected a runtime above 0")


def _check_finite(name: str, values: NDArray[np.float32], fail: Fail) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        fail(name, f"row {row}, column {column} is {values[row, column]}; expected a finite number")


def check_positions(name: str, values: NDArray[np.int64], n_nodes: int, fail: Fail) -> None:
    """Check that the values of a field, of any shape, are positions of nodes."""
    outside = (values < 0) | (values >= n_nodes)
    if outside.any():
        row = int(np.argwhere(outside)[0, 0])
        requirement = f"expected node positions 0..{n_nodes - 1}"
        fail(name, f"row {row} is {values[row].tolist()}; {requirement}")


def hash_rows(table: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Hash each row of a table (c, …) by its bytes, as (c,) uint64.

    BLAKE2b shortened to 64 bits: for 100,000 configs a collision has a chance of 3e-10.
    """
    contiguous = np.ascontiguousarray(table)
    digests = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in contiguous)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def distinct_rows(
    hashes: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs.

    Returns:
        first: The first row of each distinct config, (u,), int64, ascending.
        group: The distinct config of each row, (c,), int64: hashes[first[group]] == hashes.
    """
    order = np.argsort(hashes)
    sorted_hashes, is_new = hashes[order], np.ones(len(hashes), dtype=bool)
    is_new[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
    first_of = np.empty_like(order)
    first_of[order] = np.minimum.reduceat(order, np.flatnonzero(is_new))[np.cumsum(is_new) - 1]
    is_first = first_of == np.arange(len(order))
    return np.flatnonzero(is_first), (np.cumsum(is_first) - 1)[first_of]


def config_hashes(graph: Graph) -> NDArray[np.uint64]:
    """Return the content hashes of a graph's configs, (c,), uint64, equal on every machine."""
    if isinstance(graph, TileGraph):
        return hash_rows(graph.config_feat + np.float32(0))  # -0 becomes 0, its equal
    assert isinstance(graph, LayoutGraph)
    return graph.configs.content_hashes()


def distinct_configs(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal configs of a graph as `distinct_rows` does."""
    return distinct_rows(config_hashes(graph))


def graph_content(graph: Graph, hashes: NDArray[np.uint64]) -> str:
    """Hash nodes, edges and configs (by `config_hashes`), without order of configs and runtimes."""
    parts = [graph.node_opcode, graph.node_feat + np.float32(0), graph.edge_index, np.sort(hashes)]
    parts += [graph.node_config_ids] if isinstance(graph, LayoutGraph) else []
    content = b"".join(part.tobytes() for part in parts)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sample_rows(graph: Graph, at_most: int) -> NDArray[np.int64]:
    """Draw measurements of a graph's configs by their content, for any order of the file.

    Every row has the same chance. The rows of one config are numbered by runtime, and the rows with
    the lowest hashes of content and number are drawn. The result is ascending.
    """
    if graph.n_configs <= at_most:
        return np.arange(graph.n_configs)
    hashes = config_hashes(graph)
    order = np.lexsort((graph.runtime_ns, hashes))
    _, start, group = np.unique(hashes[order], return_index=True, return_inverse=True)
    number = (np.arange(len(order)) - start[group]).astype(np.uint64)
    lowest = np.argsort(hash_rows(np.stack([hashes[order], number], axis=1)))[:at_most]
    return np.sort(order[lowest])


def group_means(values: NDArray[Any], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of `values` (c,) within each group, (u,), float64."""
    return np.bincount(group, weights=values.astype(np.float64)) / np.bincount(group)


def program_content(graph: LayoutGraph) -> str:
    """Hash nodes and edges as 16 hex digits, without configs, runtimes and order of nodes.

    The hash of a node covers its features, its opcode and its place in config order. In two rounds
    it also takes in the hashes of its operands and its readers. Two programs have the same hash
    only if all nodes have the same surroundings of two edges.
    """
    place = np.full(graph.n_nodes, -1, dtype=np.int64)
    place[graph.node_config_ids] = np.arange(len(graph.node_config_ids))
    features = (graph.node_feat + np.float32(0), graph.node_opcode[:, None], place[:, None])
    numbers = hash_rows(np.concatenate([_as_bytes(part) for part in features], axis=1))
    consumer, producer = graph.edge_index.T
    for _ in range(ROUNDS):
        operands, readers = np.zeros_like(numbers), np.zeros_like(numbers)
        np.add.at(operands, consumer, numbers[producer])
        np.add.at(readers, producer, numbers[consumer])
        numbers = hash_rows(np.stack([numbers, operands, readers], axis=1))
    total = numbers.sum(dtype=np.uint64)
    return hashlib.blake2b(int(total).to_bytes(8, "little"), digest_size=8).hexdigest()


def _as_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
