"""Measure GPU work: its time, the bytes that it moves, the bandwidth of the card, and memory."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.layout import fused_ops

N_CALLS, N_WARM_CALLS = 20, 3
# The GPU sleeps for a tenth of a millisecond while the host launches the work.
SLEEP_CYCLES = 200_000


class MovedBytes(TorchDispatchMode):
    """Counter of the bytes that operations read and write, each tensor once per operation.

    Views and new tensors without values move nothing. A kernel of models/layout/fused_ops.py moves
    its tensor arguments.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        aliases = [value.alias_info for value in function._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and "empty" not in function._schema.name:
            self.add((args, kwargs, result))
        return result

    def add(self, values: Any) -> None:
        """Count the bytes of tensors."""
        tensors = [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]
        distinct = {t.data_ptr(): t for t in tensors if t.layout == torch.strided}
        self.total += sum(t.nbytes for t in distinct.values())


@contextmanager
def moved_bytes() -> Iterator[MovedBytes]:
    """Count the bytes that the operations of a `with` block move."""
    launch, counter = fused_ops._launch, MovedBytes()

    def counted_launch(name: str, grid: tuple[int, ...], *arguments: Any, **sizes: int) -> None:
        counter.add(arguments)
        launch(name, grid, *arguments, **sizes)

    fused_ops._launch = counted_launch
    try:
        with counter:
            yield counter
    finally:
        fused_ops._launch = launch


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median time of calls in milliseconds. On a GPU, only the kernels count."""
    if device.type == "cpu":
        began = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - began)
    for _ in range(N_WARM_CALLS):
        work()
    times_ms = []
    for _ in range(N_CALLS):
        torch.cuda._sleep(SLEEP_CYCLES)
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        times_ms.append(first.elapsed_time(last))
    return statistics.median(times_ms)


@cache
def copy_gb_per_s(device: torch.device) -> float:
    """Return the bytes that a large copy reads and writes per second, in GB/s."""
    source = torch.randn((1 << 20) if device.type == "cpu" else (1 << 29), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / milliseconds(lambda: target.copy_(source), device) / 1e6


def matmul_tflop_per_s(device: torch.device) -> float:
    size = 256 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / milliseconds(lambda: a @ b, device) / 1e9


def speed(n_bytes: int, ms: float, device: torch.device) -> list[str]:
    """Format the speed of an operation in GB/s, and its time divided by the time of a copy."""
    roofline_ms = n_bytes / copy_gb_per_s(device) / 1e6
    return [f"{n_bytes / ms / 1e6:,.0f}", f"{ms / roofline_ms:.2f}"]


def reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
