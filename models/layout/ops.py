"""Which form of a block's work on nodes a tensor gets: plain torch, or fused kernels on a GPU."""

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from models.layout import fused_ops, plain_ops


def ops_for(x: Tensor, *, fused: bool) -> ModuleType:
    """Return the module of functions: `plain_ops`, or `fused_ops` for what is on a GPU.

    Triton comes with torch's builds for GPUs, but not on every system.
    """
    if not (fused and x.is_cuda) or (torch.cuda.is_available() and not find_spec("triton")):
        return plain_ops
    return fused_ops
