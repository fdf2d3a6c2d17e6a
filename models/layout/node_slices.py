"""Slices of nodes whose tensors stay in the processor's cache, or in bounds elsewhere."""

from torch import Tensor

SLICE_BYTES = 2 << 20
# A GPU has no such cache, and each slice costs it a launch: only memory is kept in bounds.
DEVICE_SLICE_BYTES = 256 << 20


def node_slices(x: Tensor) -> list[slice]:
    """Cut the nodes of (n, c, h) so that a slice's tensor takes about SLICE_BYTES on the CPU."""
    slice_bytes = SLICE_BYTES if x.device.type == "cpu" else DEVICE_SLICE_BYTES
    step = max(1, slice_bytes // max(1, x[:1].nbytes))
    return [slice(start, start + step) for start in range(0, len(x), step)]
