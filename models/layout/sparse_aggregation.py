"""Edges as sparse matrices, and the sum over a node, what it reads and what reads it.

The mean aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. On
node-major tensors it is one product of a sparse (n, 2n) matrix with a dense (2n, c·h) one, added to
what each node keeps of itself.
"""

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from models.training.device import OnDevice


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
        means: what is taken of others alone, (r, 2m), where each node is a row of its own (r = m);
            else as `joint`.
        keeps_own: whether it is so.
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


class Neighbours(SplitAggregation):
    """A graph's edges, ready for sums over each node, what it reads and what reads it.

    Attributes:
        every: all of it, as of `joint_matrix`.
        edge_index: (e, 2) int64 the edges themselves; a row [u, v] means that u consumes v.

    Args:
        varying: (k,) int64 nodes that differ from config to config before any message; all that is
            given is on the CPU.
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
