"""Inputs of layout networks: edges as sparse matrices, nodes, packed configs.

The mean aggregation is GraphSAGE's (Hamilton et al., 2017), with separate edge directions. It is
one product of a sparse (n, 3n) matrix with a dense (3n, c·h) matrix.
"""

import warnings
from dataclasses import dataclass, replace
from functools import partial
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
from features.statistics.configs import config_moments
from features.statistics.layout import output_bytes
from features.statistics.layout_tables import LayoutTables, layout_rows, layout_tables
from models.config.recipe import FeaturesConfig
from models.training.device import OnDevice, upload

if TYPE_CHECKING:
    from features.pyg import TpuGraph

# The warning comes at the first matrix, and users can do nothing about it.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


class SparseProduct(OnDevice):
    """Multiply (n, c, h) tensors by a fixed sparse matrix (r, n) along nodes."""

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = _torch_csr(matrix)
        self.transposed = _torch_csr(matrix.T.tocsr())

    def __call__(self, x: Tensor) -> Tensor:
        return _multiply(self.matrix, x)

    def add_to(self, out: Tensor, x: Tensor) -> None:
        """Add the product with x, (n, c, h), to `out`, (r, c, h), in place, without a gradient."""
        if out.dtype == torch.float32:
            out.flatten(1).addmm_(self.matrix, x.flatten(1))
        else:
            out += _multiply(self.matrix, x)

    def transpose(self, y: Tensor) -> Tensor:
        """Multiply y, (r, c, h), by the transposed matrix, to (n, c, h)."""
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
    # CPUs have no sparse products in half precision.
    with torch.autocast(x.device.type, enabled=False):
        dense = x.float().flatten(1)
        # `matrix @ dense` would fill a tensor with zeros and copy the result.
        rows = dense.new_empty(matrix.shape[0], dense.shape[1]).addmm_(matrix, dense, beta=0)
        return rows.view(-1, *x.shape[1:]).to(x.dtype)


class Aggregation(OnDevice):
    """Sums of r rows over m nodes: own values, and means over operands and over users.

    Attributes:
        joint: (r, 3m) matrix of all three parts.
        by_part: (3r, m) matrix of the same parts, one below the other.
        means: (r, 2m) matrix without the own values if `keeps_own`, else `joint`. Rows are nodes
            then.
    """

    def __init__(self, joint: sparse.csr_matrix, *, keeps_own: bool = False) -> None:
        n_nodes = joint.shape[1] // 3
        self.keeps_own = keeps_own
        self.joint = SparseProduct(joint)
        parts = [joint[:, first : first + n_nodes] for first in (0, n_nodes, 2 * n_nodes)]
        self.by_part = _torch_csr(sparse.vstack(parts, format="csr"))
        self.means = SparseProduct(joint[:, n_nodes:].tocsr()) if keeps_own else self.joint


class SplitAggregation(OnDevice):
    """Aggregation in two parts: over the nodes that differ between configs, and over all others.

    Args:
        matrix: (r, 3n) rows of `joint_matrix`.
        varying: (k,) int64 nodes that differ between configs.
    """

    def __init__(self, matrix: sparse.csr_matrix, varying: Tensor) -> None:
        ids, n_nodes = varying.numpy(), matrix.shape[1] // 3
        columns = np.concatenate([ids, n_nodes + ids, 2 * n_nodes + ids])
        is_fixed = np.ones(3 * n_nodes, dtype=matrix.dtype)
        is_fixed[columns] = 0
        fixed_part = (matrix @ sparse.diags(is_fixed)).tocsr()
        fixed_part.eliminate_zeros()
        self.varying = varying
        self.fixed = Aggregation(fixed_part)
        self.of_varying = Aggregation(matrix[:, columns].tocsr())


class SparseAggregation(SplitAggregation):
    """A graph's edges, ready for sums over each node, its operands and its users.

    Attributes:
        edge_index: (e, 2) int64 edges. A row [u, v] means that u consumes v.
    """

    def __init__(self, edge_index: Tensor, n_nodes: int, varying: Tensor) -> None:
        matrix = joint_matrix(edge_index, n_nodes)
        super().__init__(matrix, varying)
        self.n_nodes = n_nodes
        self.every = Aggregation(matrix, keeps_own=True)
        self.edge_index = edge_index


def joint_matrix(edge_index: Tensor, n_nodes: int) -> sparse.csr_matrix:
    """Return the matrix of each node, the mean over its operands and the mean over its users.

    Args:
        edge_index: (e, 2) int64 edges from consumer to producer.
        n_nodes: Number of nodes, n.

    Returns:
        (n, 3n) float32 matrix.
    """
    consumer, producer = edge_index.numpy().T
    operands = _means(consumer, producer, n_nodes)
    users = _means(producer, consumer, n_nodes)
    itself = sparse.identity(n_nodes, dtype=np.float32, format="csr")
    return sparse.hstack([itself, operands, users], format="csr")


def _means(row: Any, column: Any, n_nodes: int) -> sparse.csr_matrix:
    degree = np.bincount(row, minlength=n_nodes)
    weights = (1 / degree[row]).astype(np.float32)
    return sparse.csr_matrix((weights, (row, column)), shape=(n_nodes, n_nodes))


@dataclass(frozen=True, kw_only=True)
class NodeInputs(OnDevice):
    """Tensors of a program's m nodes, k of them configurable."""

    node_feat: Tensor  # (m, 140) float32 scaled, 0 in the layout columns
    opcode: Tensor  # (m,) int64
    layout: Tensor  # (m, 6) int64 embedding rows of the compiler's layout, 0 for no dimension
    config_ids: Tensor  # (k,) int64 positions of the configurable nodes
    neighbours: SparseAggregation

    @property
    def n_nodes(self) -> int:
        return len(self.opcode)


@dataclass(frozen=True, kw_only=True)
class ConfigInputs(OnDevice):
    """The configs of a graph.

    On the CPU, configs and runtimes stay in their arrays, which a file may map. A GPU stores both,
    so a step sends only the rows that it takes.

    Attributes:
        vectors: (v, 18) int64 distinct layout vectors of all configs, as embedding rows.
        first: (u,) int64 first row of each distinct config.
        group: (c,) int64 distinct config of each row.
        n_query_configs: Number of query configs, which are the last distinct configs. See
            LayoutGraph.
        runtime_ns: (u,) float64 merged runtime of each distinct config, 0 if withheld.
        on_gpu: Copies on a GPU: packed `indices` (u, a) of distinct configs, the row in `vectors`
            of each index, the first index of each column, the column of each configurable node, and
            runtimes. None on the CPU.
    """

    vectors: Tensor
    configs: PackedConfigs
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    n_query_configs: int
    runtime_ns: NDArray[np.float64]
    on_gpu: tuple[Tensor, ...] | None = None

    def to(self, device: torch.device) -> Self:
        inputs = super().to(device)
        return inputs if device.type == "cpu" else replace(inputs, on_gpu=self.copies(device))

    def copies(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tensors of `on_gpu`."""
        codebooks, indices = self.configs.codebooks, self.configs.indices[self.first]
        # torch supports few unsigned types.
        if indices.dtype != np.uint8:
            indices = indices.astype(np.int32)
        n_columns, width = codebooks.vectors.shape
        vector_of, starts = codebooks.vectors.reshape(-1), np.arange(n_columns) * width
        arrays = indices, vector_of, starts, codebooks.column_of, self.runtime_ns
        return tuple(torch.from_numpy(array).to(device) for array in arrays)

    def choices(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
        """Return the layouts of distinct configs (r,) as rows of `vectors`, (r, k) int64."""
        if self.on_gpu is None:
            return torch.from_numpy(self.configs.vector_ids(self.first[distinct]))
        _, vector_of, starts, column_of, _ = self.on_gpu
        return vector_of[self.places(distinct) + starts][:, column_of]

    def places(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
        """Return the index of each column's vector, (r, m) int64, in distinct configs (r,)."""
        if self.on_gpu is None:
            return torch.from_numpy(self.configs.places(self.first[distinct]))
        return self.on_gpu[0][upload(distinct, self.vectors.device)].long()

    def runtimes(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
        """Return the merged runtimes of distinct configs (r,), (r,) float64 in ns."""
        if self.on_gpu is None:
            return torch.from_numpy(self.runtime_ns[distinct])
        return self.on_gpu[-1][upload(distinct, self.vectors.device)]

    def symbols(self, distinct: NDArray[np.int64]) -> Tensor:
        """Return the layouts of distinct configs (r,) as embedding rows, (r, k, 18) int64."""
        return self.vectors[self.choices(distinct)]


@dataclass(frozen=True, kw_only=True)
class LayoutInputs(NodeInputs, ConfigInputs):
    """A pruned graph of m nodes, and its distinct configs.

    Attributes:
        bytes_share: (m,) float32 share of each node in the bytes of all outputs.
        tables: Fields of LayoutTables. None if the network does not read statistics.
        centre: (s,) float64 mean of the statistics over configs, (0,) without statistics.
    """

    bytes_share: Tensor
    tables: tuple[Tensor, ...] | None
    centre: Tensor

    def statistics(self, distinct: NDArray[np.int64] | Tensor) -> Tensor:
        """Return the statistics of distinct configs (r,) minus the graph's mean, (r, s) float32."""
        assert self.tables is not None
        rows: Tensor = layout_rows(LayoutTables(*self.tables), self.places(distinct), torch)
        return (rows - self.centre).float()

    def as_pyg(self, distinct: NDArray[np.int64]) -> "TpuGraph":
        """Return the graph with distinct configs (r,), as an item of TpuGraphsLayout."""
        from features.pyg import TpuGraph

        return TpuGraph(
            x=self.node_feat,
            opcode=self.opcode,
            node_layout=self.layout - 1,
            edge_index=self.neighbours.edge_index.T.flip(0),
            config_node_ids=self.config_ids,
            config_feat=self.symbols(distinct).transpose(0, 1) - 1,
        )


def layout_reader(
    features: FeaturesConfig, scaler: NodeScaler, *, with_statistics: bool = False
) -> partial[LayoutInputs]:
    """Return `layout_inputs` with the features of a recipe."""
    return partial(
        layout_inputs,
        rule=features.prune,
        padding=features.padding,
        scaler=scaler,
        with_statistics=with_statistics,
    )


def layout_inputs(
    graph: LayoutGraph,
    *,
    rule: str,
    scaler: NodeScaler,
    padding: str = "zero",
    with_statistics: bool = False,
) -> LayoutInputs:
    """Prune and scale a graph, and group its equal configs."""
    pruned = prune_layout_graph(graph, rule=rule, padding=padding)
    node_feat = scaler(pruned.node_feat)
    node_feat[:, MINOR_TO_MAJOR] = 0
    first, group = distinct_configs(graph)
    edges, config_ids = map(torch.from_numpy, (pruned.edge_index, pruned.config_ids))
    sizes = output_bytes(pruned.node_feat)
    shares = (sizes / max(sizes.sum(), 1.0)).astype(np.float32)
    tables = layout_tables(graph) if with_statistics else None
    centre = config_moments(graph, tables, first)[0] if tables else np.empty(0)
    return LayoutInputs(
        node_feat=torch.from_numpy(node_feat),
        opcode=torch.from_numpy(pruned.opcode.astype(np.int64)),
        layout=torch.from_numpy(layout_symbols(pruned.minor_to_major)),
        config_ids=config_ids,
        neighbours=SparseAggregation(edges, len(pruned.kept), varying=config_ids),
        bytes_share=torch.from_numpy(shares),
        vectors=torch.from_numpy(layout_symbols(graph.configs.vectors)),
        configs=graph.configs,
        first=first,
        group=group,
        tables=tables and tuple(map(torch.from_numpy, tables)),
        centre=torch.from_numpy(centre),
        runtime_ns=group_means(graph.runtime_ns, group),
        n_query_configs=int((first >= graph.n_counted).sum()),
    )
