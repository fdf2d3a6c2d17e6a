"""Where networks are computed: on a CUDA GPU where there is one, else on the CPU.

Everything random but dropout is drawn on the host, so that a seed takes the same graphs and configs
on either. What is fixed of a graph is moved once; of configs a step moves those that it takes.
"""

import copy
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import UsageError
from models.config.networks import TrainingConfig

KEPT_BYTES = 512 << 20  # of what ranking keeps of configs between two blocks, on a CPU
MAX_TENSOR_BYTES = 2 << 30  # keeps the number of values in 31 bits
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class OnDevice:
    """Something of tensors, of other such things, or of tuples of them."""

    def to(self, device: torch.device) -> Self:
        """Return the same with every tensor on `device`; arrays and matrices stay on the host."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            object.__setattr__(moved, name, _moved(value, device))  # dataclasses are frozen
        return moved


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor | OnDevice) else value


def sent(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Return arrays as tensors on `device`: moved there all at once, without waiting for it."""
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type == "cpu":
        return tensors
    sizes = [-(-tensor.nbytes // 8) * 8 for tensor in tensors]  # each begins at a multiple of 8
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    for part, tensor in zip(packed.split(sizes), tensors, strict=True):
        part[: tensor.nbytes] = torch.from_numpy(tensor.numpy().reshape(-1).view(np.uint8))
    packed = packed.pin_memory() if device.type == "cuda" else packed  # else a copy waits
    parts = packed.to(device, non_blocking=True).split(sizes)
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]


def uploaded(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`, as `sent`."""
    return sent([array], device)[0]


def allows_tf32(training: TrainingConfig) -> bool:
    """Tell whether a GPU may round factors of float32 products to TF32's 10 bits: by default."""
    return training.precision != "float32"


def prepare_torch(
    *, seed: int, threads: int, device: torch.device = CPU, tf32: bool = False
) -> None:
    """Fix the seed, the thread count and deterministic algorithms of this process.

    A GPU has no such algorithm for a few operations, and then takes the one it has.
    """
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high" if tf32 and device.type == "cuda" else "highest")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")
    if device.type != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may vary
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
    # By default that also fills every new tensor with NaN, a tenth of a step's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # The graphs' matrices are valid by construction; torch asks for a word on that, and warns that
    # its row-compressed matrices are new.
    torch.sparse.check_sparse_tensor_invariants.disable()
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@contextmanager
def torch_prepared(
    *, threads: int, device: torch.device, seed: int = 0, tf32: bool = False
) -> Iterator[None]:
    """Compute as `prepare_torch` says while the block runs; then all is as the caller had it."""
    checks, filling = torch.sparse.check_sparse_tensor_invariants, torch.utils.deterministic
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    fill = "fill_uninitialized_memory"
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(warnings.catch_warnings())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        stack.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
        stack.callback(setattr, filling, fill, getattr(filling, fill))
        if checks.is_enabled():
            stack.callback(checks.enable)
        prepare_torch(seed=seed, threads=threads, device=device, tf32=tf32)
        yield


def training_device(accelerator: str) -> torch.device:
    """Return what a network is trained on, by a recipe's key.

    Raises:
        UsageError: a GPU is asked for where there is none.
    """
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "accelerator = cuda: torch finds no CUDA GPU on this machine; expected auto, which "
            "says why, or cpu"
        )
    return ranking_device(accelerator)


def ranking_device(accelerator: str) -> torch.device:
    """Return what a trained network ranks on; without a GPU, "cuda" does not keep it from that."""
    return GPU if accelerator != "cpu" and torch.cuda.is_available() else CPU


def ranking_bytes(device: torch.device, tensor_mib: int) -> tuple[int, int]:
    """Return how large a tensor of a chunk may be in ranking, and all that is kept between blocks.

    On a CPU as a recipe says, which is a cache's size; on a GPU by the memory that is free.
    """
    if device.type == "cpu":
        return tensor_mib << 20, KEPT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return max(tensor_mib << 20, min(free // 96, MAX_TENSOR_BYTES)), free * 6 // 10


def device_of(model: nn.Module) -> torch.device:
    """Return where a network's weights lie."""
    return next(model.parameters()).device
