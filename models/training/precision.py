"""Half precision: which type activations are stored in, and when.

A recipe's `precision` is a type, or "auto": float32 on a CPU; on a GPU bfloat16 where its cores
compute it (compute capability 8.0 and newer), else float16, whose gradients are scaled up so that
small ones do not vanish. Of tile networks "auto" is read as float32. Weights, norms, sums of
softmaxes, pooling and losses are float32 always.

The type stands in torch's autocast, which plain layers follow by themselves; networks that store
activations by operations of their own ask `storage_dtype`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from common.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

BFLOAT16_CAPABILITY = 8, 0


def precision_on(
    device: torch.device, precision: str, *, version: tuple[int, int] | None = None
) -> torch.dtype:
    """Return what activations are stored in; `version` is a GPU's, if it was asked already.

    Raises:
        UsageError: a GPU without bfloat16 is asked for it.
    """
    is_gpu = device.type == "cuda"
    if version is None:
        version = torch.cuda.get_device_capability(device) if is_gpu else BFLOAT16_CAPABILITY
    has_bfloat16 = version >= BFLOAT16_CAPABILITY
    if precision == "auto":
        precision = ("bfloat16" if has_bfloat16 else "float16") if is_gpu else "float32"
    if precision == "bfloat16" and not has_bfloat16:
        raise UsageError(
            f"training.precision = bfloat16: this GPU, of compute capability {version[0]}."
            f"{version[1]}, does not compute it; expected auto, float16 or float32"
        )
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


def computing(device: torch.device, precision: str) -> torch.autocast:
    """Let networks store activations by `precision` while the block runs."""
    dtype = precision_on(device, precision)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def storage_dtype(device: torch.device) -> torch.dtype:
    """Return what the context at hand stores activations in."""
    is_half = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_half else torch.float32


def by_own_types(function: Function) -> Function:
    """Let a function of tensors compute in the types that it says, whatever the context stores."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        device = next(value for value in args if isinstance(value, Tensor)).device
        with torch.autocast(device.type, enabled=False):
            return function(*args, **kwargs)

    return called  # type: ignore[return-value]
