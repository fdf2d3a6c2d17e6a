"""One layout graph as the layout GNN reads it: edges as sparse matrices, nodes, packed configs.

The mean aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart: one
product of a sparse (n, 2n) matrix with a dense (2n, c·h) one.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from data.graphs.graph import LayoutGraph, distinct_configs, group_means
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import PackedConfigs
from features.padding import layout_symbols
from features.pruning import prune_layout_graph
from features.scaling import NodeScaler
from features.statistics.configs import centred_statistics
from features.statistics.layout import output_bytes
from models.training.device import OnDevice, uploaded

if TYPE_CHECKING:
    from features.pyg import TpuGraph


class SparseProduct(OnDevice):
    """Multiply (n, c, h) tensors by a fixed sparse matrix (r, n) along nodes."""

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = _torch_csr(matrix)
        self.transposed = _torch_csr(matrix.T.tocsr())

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, c, h) to (r, c, h)."""
        return _multiply(self.matrix, x)

    def add_to(self, out: Tensor, x: Tensor) -> None:
        """Add the product with (n, c, h) to (r, c, h) in place; without a gradient."""
        if out.dtype == torch.float32:
            out.flatten(1).addmm_(self.matrix, x.flatten(1))
        else:
            out += _multiply(self.matrix, x)

    def transpose(self, y: Tensor) -> Tensor:
        """Map (r, c, h) to (n, c, h) by the transposed matrix."""
        return _multiply(self.transposed, y)


def _torch_csr(matrix: sparse.csr_matrix) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int32)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
        check_invariants=False,
    )


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):  # processors know no sparse half precision
        return (matrix @ x.float().flatten(1)).view(-1, *x.shape[1:]).to(x.dtype)


class Aggregation(OnDevice):
    """Which of r rows take what of m nodes: own values, and means over operands and over users.

    Attributes:
        joint: (r, 3m), all of it.
        means: if `keeps_own`, what each node, a row of its own, takes of others alone, (r, 2m).
    """

    def __init__(self, joint: sparse.csr_matrix, *, keeps_own: bool = False) -> None:
        n_nodes = joint.shape[1] // 3
        self.keeps_own = keeps_own
        self.joint = SparseProduct(joint)
        self.means = SparseProduct(joint[:, n_nodes:].tocsr()) if keeps_own else self.joint


class SplitAggregation(OnDevice):
    """What rows take of the nodes that differ from config to config, and of all others.

    Attributes:
        varying: (k,) int64 the nodes that differ.
        fixed: of all n nodes but for these.
        of_varying: of these alone, m = k.

    Args:
        matrix: (r, 3n) rows as of `joint_matrix`.
    """

    def __init__(self, matrix: sparse.csr_matrix, varying: Tensor) -> None:
        ids, n_nodes = varying.numpy(), matrix.shape[1] // 3
        columns = np.concatenate([ids, n_nodes + ids, 2 * n_nodes + ids])
        kept = np.ones(3 * n_nodes, dtype=matrix.dtype)
        kept[columns] = 0
        others = (matrix @ sparse.diags(kept)).tocsr()
        others.eliminate_zeros()
        self.varying = varying
        self.fixed = Aggregation(others)
        self.of_varying = Aggregation(matrix[:, columns].tocsr())


class SparseAggregation(SplitAggregation):
    """A graph's edges, ready for sums over each node, what it reads and what reads it.

    Attributes:
        every: all of it, as of `joint_matrix`.
        edge_index: (e, 2) int64 the edges themselves; a row [u, v] means that u consumes v.
    """

    def __init__(self, edge_index: Tensor, n_nodes: int, varying: Tensor) -> None:
        matrix = joint_matrix(edge_index, n_nodes)
        super().__init__(matrix, varying)
        self.n_nodes = n_nodes
        self.every = Aggregation(matrix, keeps_own=True)
        self.edge_index = edge_index


def joint_matrix(edge_index: Tensor, n_nodes: int) -> sparse.csr_matrix:
    """Return (n, 3n): the node itself, the mean over its operands, the mean over its users."""
    consumer, producer = edge_index.numpy().T
    operands = _means(consumer, producer, n_nodes)
    users = _means(producer, consumer, n_nodes)
    own = sparse.identity(n_nodes, dtype=np.float32, format="csr")
    return sparse.hstack([own, operands, users], format="csr")


def _means(row: Any, column: Any, n_nodes: int) -> sparse.csr_matrix:
    degree = np.bincount(row, minlength=n_nodes)
    weights = (1 / degree[row]).astype(np.float32)
    return sparse.csr_matrix((weights, (row, column)), shape=(n_nodes, n_nodes))


@dataclass(frozen=True, kw_only=True)
class NodeInputs(OnDevice):
    """A program's m nodes as tensors, k of them configurable."""

    node_feat: Tensor  # (m, 140) float32 scaled; the layout columns are 0, they are embedded
    opcode: Tensor  # (m,) int64
    layout: Tensor  # (m, 6) int64 embedding rows of each node's own layout, 0 for no dimension
    config_ids: Tensor  # (k,) int64 configurable nodes as positions among the m
    neighbours: SparseAggregation


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
        n_query_configs: how many of the last distinct configs are query configs, see LayoutGraph.
        runtime_ns: (u,) float64 mean runtime of each distinct config; 0 where withheld.
        held: on a GPU, its packed `indices` (u, a) of distinct configs, what an index means among
            `vectors`, where a column's begin in that, each configurable node's column; runtimes.
    """

    vectors: Tensor
    configs: PackedConfigs
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    n_query_configs: int
    runtime_ns: NDArray[np.float64]
    held: tuple[Tensor, ...] | None = None

    def to(self, device: torch.device) -> Self:
        moved = super().to(device)
        if device.type == "cpu":
            return moved
        codebooks, indices = self.configs.codebooks, self.configs.indices[self.first]
        if indices.dtype != np.uint8:  # torch computes with few unsigned types
            indices = indices.astype(np.int32)
        n_columns, width = codebooks.vectors.shape
        meaning, starts = codebooks.vectors.reshape(-1), np.arange(n_columns) * width
        arrays = indices, meaning, starts, codebooks.column_of, self.runtime_ns
        held = tuple(torch.from_numpy(array).to(device) for array in arrays)
        return replace(moved, held=held)

    def choices(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
        """Return which of `vectors` each node takes in the configs at `distinct` (r,); (r, k)."""
        if self.held is None:
            return torch.from_numpy(self.configs.vector_ids(self.first[distinct]))
        indices, meaning, starts, column_of, _ = self.held
        rows = uploaded(distinct, self.vectors.device)
        return meaning[indices[rows] + starts][:, column_of]

    def runtimes(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
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

    def as_pyg(self, distinct: NDArray[np.int64]) -> "TpuGraph":
        """Return the graph with the distinct configs at `distinct` (r,), as TpuGraphsLayout would.

        Args:
            distinct: (r,) positions among the distinct configs.
        """
        from features.pyg import TpuGraph

        return TpuGraph(
            x=self.node_feat,
            opcode=self.opcode,
            node_layout=self.layout - 1,
            edge_index=self.neighbours.edge_index.T.flip(0),
            config_node_ids=self.config_ids,
            config_feat=self.symbols(distinct).transpose(0, 1) - 1,
        )


def layout_inputs(
    graph: LayoutGraph,
    *,
    rule: str,
    scaler: NodeScaler,
    with_statistics: bool = False,
) -> LayoutInputs:
    """Prune a graph by a rule of features.pruning, scale it and group its equal configs."""
    pruned = prune_layout_graph(graph, rule=rule)
    scaled = scaler(pruned.node_feat)
    scaled[:, MINOR_TO_MAJOR] = 0
    first, group = distinct_configs(graph)
    edges, config_ids = map(torch.from_numpy, (pruned.edge_index, pruned.config_ids))
    sizes = output_bytes(pruned.node_feat)
    shares = (sizes / max(sizes.sum(), 1.0)).astype(np.float32)
    return LayoutInputs(
        node_feat=torch.from_numpy(scaled),
        opcode=torch.from_numpy(pruned.opcode.astype(np.int64)),
        layout=torch.from_numpy(layout_symbols(pruned.minor_to_major)),
        config_ids=config_ids,
        neighbours=SparseAggregation(edges, len(pruned.kept), varying=config_ids),
        bytes_share=torch.from_numpy(shares),
        vectors=torch.from_numpy(layout_symbols(graph.configs.vectors)),
        configs=graph.configs,
        first=first,
        group=group,
        statistics=torch.from_numpy(centred_statistics(graph, first)) if with_statistics else None,
        runtime_ns=group_means(graph.runtime_ns, group),
        n_query_configs=int((first >= graph.n_counted).sum()),
    )
