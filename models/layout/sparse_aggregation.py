"""Edges as sparse matrices, and the sum over a node, what it reads and what reads it.

The mean aggregation is GraphSAGE's (Hamilton et al., 2017), with edge directions kept apart. On
node-major tensors it is one product of a sparse (n, 2n) matrix with a dense (2n, c·h) one, added to
what each node keeps of itself.
"""

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from models.training.device import OnDevice

SLICE_BYTES = 2 << 20
# A GPU has no such cache, and each slice costs it a launch: only memory is kept in bounds.
DEVICE_SLICE_BYTES = 256 << 20


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of (n, c, h) so that a slice's tensor takes about SLICE_BYTES."""
    slice_bytes = SLICE_BYTES if x.device.type == "cpu" else DEVICE_SLICE_BYTES
    step = max(1, slice_bytes // max(1, x[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(x), step)]


class SparseProduct(OnDevice):
    """Multiply (n, c, h) tensors by a fixed sparse matrix (r, n) along nodes."""

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix = _torch_csr(matrix)
        self.transposed = _torch_csr(matrix.T.tocsr())

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, c, h) to (r, c, h)."""
        return _multiply(self.matrix, x)

    def add_to(self, out: Tensor, x: Tensor) -> None:
        """Add the product with (n, c, h) to (r, c, h) in place; float32 without a gradient."""
        out.flatten(1).addmm_(self.matrix, x.flatten(1))

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
        return (matrix @ x.float().flatten(1)).view(-1, *x.shape[1:])


class Aggregation(OnDevice):
    """Which of r rows take what of m nodes: own values, and means over operands and over users.

    Attributes:
        means: the product with the (r, 2m) right part of `joint` (r, 3m).
        row: (m,) int64 the row that takes a node's own value, -1 = none; None where r = m and
            each node is its own row.
    """

    def __init__(self, joint: sparse.csr_matrix) -> None:
        n_nodes = joint.shape[1] // 3
        own = joint[:, :n_nodes].tocoo()
        row = np.full(n_nodes, -1)
        row[own.col] = own.row
        is_each_its_own = np.array_equal(row, np.arange(joint.shape[0]))
        self.row = None if is_each_its_own else torch.from_numpy(row)
        self.means = SparseProduct(joint[:, n_nodes:].tocsr())

    def __call__(self, x: Tensor, norm: nn.LayerNorm, weights: Tensor, added: Tensor) -> Tensor:
        """Return what rows take of norm(x), each part by its own weights, plus what is added.

        Args:
            x: (m, c, h).
            norm: over channels.
            weights: (3, h, h) of the own part, the operands' and the users'.
            added: (h,), or (r, 1, h) where rows differ.

        Returns:
            (r, c, h) float32.
        """
        given = x.float(), norm.weight, norm.bias, norm.eps, weights, added
        result: Tensor = _NormProjectAggregate.apply(*given, self)
        return result


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
        self.every = Aggregation(matrix)
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


class _NormProjectAggregate(torch.autograd.Function):
    """Aggregation.__call__: keeps x alone for the gradients, and takes the norm again for them."""

    @staticmethod
    def forward(  # noqa: PLR0917 -- autograd functions take no keywords
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        shift: Tensor,
        eps: float,
        weights: Tensor,
        added: Tensor,
        aggregation: Aggregation,
    ) -> Tensor:
        ctx.save_for_backward(x, gain, shift, weights)
        ctx.eps, ctx.aggregation, ctx.added_shape = eps, aggregation, added.shape
        own_weight, *other_weights = weights
        row, means = aggregation.row, aggregation.means
        shape = (means.matrix.shape[0], *x.shape[1:])
        added = added.expand(shape[0], 1, -1)
        if row is None:
            out = x.new_empty(shape)
        else:
            out = added.expand(shape).clone(memory_format=torch.contiguous_format)
        projected = x.new_empty(len(other_weights), *x.shape)
        for part in node_slices(x):
            h = nn.functional.layer_norm(x[part], x.shape[-1:], gain, shift, eps).flatten(0, 1)
            for weight, into in zip(other_weights, projected, strict=True):
                torch.mm(h, weight.T, out=into[part].flatten(0, 1))
            if row is None:
                out[part] = added[part]
                out[part].flatten(0, 1).addmm_(h, own_weight.T)
            else:
                own = h.new_empty(x[part].shape)
                torch.mm(h, own_weight.T, out=own.flatten(0, 1))
                taken = row[part] >= 0
                out.index_add_(0, row[part][taken], own if taken.all() else own[taken])
        means.add_to(out, projected.flatten(0, 1))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, weights = ctx.saved_tensors
        row, means = ctx.aggregation.row, ctx.aggregation.means
        grad = grad.contiguous()
        projected = means.transpose(grad).view(len(weights) - 1, *x.shape)
        grad_x, grad_weights = torch.empty_like(x), torch.zeros_like(weights)
        grad_gain, grad_shift = torch.zeros_like(gain), torch.zeros_like(shift)
        for part in node_slices(x):
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in (x[part], gain, shift)]
                h = nn.functional.layer_norm(leaves[0], x.shape[-1:], leaves[1], leaves[2], ctx.eps)
            flat = h.detach().flatten(0, 1)
            grad_h = torch.zeros_like(flat)
            for of_weight, into, weight in zip(
                _own_first(grad, row, part, projected), grad_weights, weights, strict=True
            ):
                into.addmm_(of_weight.T, flat)
                grad_h.addmm_(of_weight, weight)
            gradients = torch.autograd.grad(h, leaves, grad_h.view_as(h))
            grad_x[part] = gradients[0]
            grad_gain += gradients[1]
            grad_shift += gradients[2]
        grad_added = grad.sum_to_size(ctx.added_shape)
        return grad_x, grad_gain, grad_shift, None, grad_weights, grad_added, None


def _own_first(grad: Tensor, row: Tensor | None, part: slice, projected: Tensor) -> list[Tensor]:
    if row is None:
        own = grad[part]
    else:
        taken = (row[part] >= 0)[:, None, None]
        own = grad[row[part].clamp(min=0)] * taken
    return [own.flatten(0, 1), *projected[:, part].flatten(1, 2)]
