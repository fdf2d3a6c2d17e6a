"""Slices of nodes whose tensors stay in the processor's cache."""

from torch import Tensor

SLICE_BYTES = 2 << 20


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of (n, c, h) so that a slice's tensor takes about SLICE_BYTES."""
    step = max(1, SLICE_BYTES // max(1, x[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(x), step)]
