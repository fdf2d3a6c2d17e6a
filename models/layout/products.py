"""Matrix products with any number of rows, whose sums are float32."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Largest number of values of a matrix in one product of torch.
MAX_VALUES = (1 << 31) - 1


def row_slices(*matrices: Tensor) -> Iterator[slice]:
    """Cut rows into slices in which no matrix has more than MAX_VALUES values."""
    step = MAX_VALUES // max(matrix.shape[1] for matrix in matrices)
    return (slice(start, start + step) for start in range(0, len(matrices[0]), step))


def add_weight_gradient(into: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add gradᵀ · x to the gradient of a weight. A sum in float16 would overflow.

    Args:
        into: (b, a) float32 gradient of the weight.
        grad: (t, b) gradient of the layer's result.
        x: (t, a) input of the layer.
    """
    for part in row_slices(grad, x):
        factors = grad[part].T, x[part]
        if grad.is_cuda and grad.dtype != into.dtype:
            into += torch.mm(*factors, out_dtype=into.dtype)
        else:
            into.addmm_(*(factor.to(into.dtype) for factor in factors))
