"""Half precision: which type activations are stored in, and when.

A recipe's `precision` is a type, or "auto": float32 on a CPU; on a GPU bfloat16 where its cores
compute it (compute capability 8.0 and newer), else float16, whose gradients are scaled up so that
small ones do not vanish. Of tile networks "auto" is read as float32. Weights, norms, sums of
softmaxes, pooling and losses are float32 always.

The type stands in torch's autocast, which plain layers follow by themselves; networks that store
activations by operations of their own ask `storage_dtype`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from common.errors import UsageError

Given = ParamSpec("Given")
Result = TypeVar("Result")

BFLOAT16_CAPABILITY = 8, 0


def precision_on(
    device: torch.device, precision: str, *, version: tuple[int, int] | None = None
) -> torch.dtype:
    """Return what activations are stored in; `version` is a GPU's, if it was asked already.

    Raises:
        UsageError: a GPU without bfloat16 is asked for it.
    """
    is_gpu = device.type == "cuda"
    version = version or (capability(device) if is_gpu else BFLOAT16_CAPABILITY)
    has_bfloat16 = version >= BFLOAT16_CAPABILITY
    if precision == "auto":
        return (torch.bfloat16 if has_bfloat16 else torch.float16) if is_gpu else torch.float32
    if precision == "bfloat16" and not has_bfloat16:
        raise UsageError(
            f"training.precision = bfloat16: this GPU, of compute capability {version[0]}."
            f"{version[1]}, does not compute it; expected auto, float16 or float32"
        )
    return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[
        precision
    ]


def capability(device: torch.device) -> tuple[int, int]:
    """Return a GPU's compute capability; that of an H100 where there is none to ask."""
    if not torch.cuda.is_available():  # a plan counts what a GPU would do
        return 9, 0
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


@contextmanager
def computing(device: torch.device, precision: str) -> Iterator[None]:
    """Let networks store activations by `precision` while the block runs.

    As torch.autocast, which refuses a GPU that is not there: a plan counts on such a one.
    """
    kind, dtype = device.type, precision_on(device, precision)
    had = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, dtype != torch.float32)
    if dtype != torch.float32:
        torch.set_autocast_dtype(kind, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(kind, had[0])
        torch.set_autocast_dtype(kind, had[1])


def storage_dtype(device: torch.device) -> torch.dtype:
    """Return what the context at hand stores activations in."""
    is_half = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_half else torch.float32


def by_own_types(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function of tensors compute in the types that it says, whatever the context stores."""

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        device = next(value for value in args if isinstance(value, Tensor)).device
        with torch.autocast(device.type, enabled=False):
            return function(*args, **kwargs)

    return called
