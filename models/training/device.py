"""The device of networks and its precision: a CUDA GPU if there is one, else the CPU.

The host draws all random numbers except dropout, so a seed selects the same graphs and configs on
both devices. The fixed part of a graph moves once. A step moves only the configs that it takes.

A recipe's `precision` is the type of stored activations, set by torch's autocast. Networks with
custom operations read it from `storage_dtype`. Weights, norms, sums of softmaxes, pooling and
losses are always float32.
"""

import copy
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import PipelineError, UsageError
from common.progress import log
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe

Function = TypeVar("Function", bound=Callable[..., Any])

# Limit of the tensors that ranking keeps between two blocks on a CPU.
KEPT_BYTES = 512 << 20
# The number of values of a tensor must fit 31 bits.
MAX_TENSOR_BYTES = 2 << 30
CPU, GPU = torch.device("cpu"), torch.device("cuda")
BFLOAT16_CAPABILITY = 8, 0
STEP_KEYS = ("configs_per_step", "graphs_per_step", "kernels_per_step", "configs_per_kernel")
TRAINING_KEYS = (*STEP_KEYS, "hidden")
RANKING_KEYS = ("inference_tensor_mib", "inference_configs")


class OnDevice:
    """An object with tensors, other such objects, or tuples of them."""

    def to(self, device: torch.device) -> Self:
        """Return a copy with every tensor on a device. Arrays and matrices stay on the host."""
        clone = copy.copy(self)
        for name, value in vars(self).items():
            object.__setattr__(clone, name, _on_device(value, device))  # dataclasses are frozen
        return clone


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(_on_device(part, device) for part in value)
    return value.to(device) if isinstance(value, Tensor | OnDevice) else value


def send(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Move arrays of any shape and type to a device together, without waiting for it."""
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    if device.type == "cpu":
        return tensors
    # Each tensor begins at a multiple of 8 bytes.
    sizes = [-(-tensor.nbytes // 8) * 8 for tensor in tensors]
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    for part, tensor in zip(packed.split(sizes), tensors, strict=True):
        part[: tensor.nbytes] = torch.from_numpy(tensor.numpy().reshape(-1).view(np.uint8))
    # A copy from memory that is not pinned waits for the GPU.
    packed = packed.pin_memory() if device.type == "cuda" else packed
    parts = packed.to(device, non_blocking=True).split(sizes)
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(parts, tensors, strict=True)
    ]


def upload(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device."""
    return array if isinstance(array, Tensor) else send([array], device)[0]


def allows_tf32(training: TrainingConfig) -> bool:
    """Return True if a GPU may round factors of float32 products to TF32's 10 bits."""
    return training.precision != "float32"


def prepare_torch(
    *, seed: int, threads: int, device: torch.device = CPU, tf32: bool = False
) -> None:
    """Set the seed, the number of threads and deterministic algorithms of this process.

    A GPU lacks deterministic algorithms for a few operations, and uses others for them. `tf32`
    allows TF32 there.
    """
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high" if tf32 and device.type == "cuda" else "highest")
    torch.set_num_threads(threads)
    # `use_deterministic_algorithms` sets the same flags but imports torch's compiler (1 s).
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "warn")
    if device.type != "cpu":
        # Without the setting, results of cuBLAS may vary.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
    # The default also fills every new tensor with NaN, which takes a tenth of a step's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # The graphs' matrices are valid by construction, so no check is needed.
    torch.sparse.check_sparse_tensor_invariants.disable()


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's default generators of the CPU and a GPU.

    `torch.manual_seed` seeds all devices, and formats a stack trace for each kind (.1 ms).
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


@contextmanager
def torch_prepared(
    *, threads: int, device: torch.device, seed: int = 0, tf32: bool = False
) -> Iterator[None]:
    """Call `prepare_torch` for a block, and restore the caller's settings after it."""
    checks, filling = torch.sparse.check_sparse_tensor_invariants, torch.utils.deterministic
    devices = [torch.cuda.current_device()] if device.type == "cuda" else []
    fill = "fill_uninitialized_memory"
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        stack.enter_context(warnings.catch_warnings())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        stack.callback(setattr, filling, fill, getattr(filling, fill))
        if checks.is_enabled():
            stack.callback(checks.enable)
        prepare_torch(seed=seed, threads=threads, device=device, tf32=tf32)
        yield


def network_device(accelerator: str) -> torch.device:
    """Return the device of a recipe's networks. The accelerator "cpu" excludes a GPU."""
    return GPU if accelerator != "cpu" and torch.cuda.is_available() else CPU


def ranking_bytes(device: torch.device, tensor_mib: int) -> tuple[int, int]:
    """Return the memory limits of ranking. On a GPU they depend on its free memory.

    Args:
        tensor_mib: Key `inference_tensor_mib` of a recipe, in MiB.

    Returns:
        Limit in bytes of a chunk's tensor, and limit of the tensors between two blocks.
    """
    if device.type == "cpu":
        return tensor_mib << 20, KEPT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return max(tensor_mib << 20, min(free // 96, MAX_TENSOR_BYTES)), free * 6 // 10


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def precision_on(
    device: torch.device, precision: str, *, version: tuple[int, int] | None = None
) -> torch.dtype:
    """Return the type of stored activations.

    Args:
        version: Compute capability of the GPU. None asks torch.

    Raises:
        UsageError: The GPU has no bfloat16, and `precision` needs it.
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
    """Let networks store activations in a precision while the block runs."""
    dtype, is_gpu = precision_on(device, precision), device.type == "cuda"
    # A cast inside a CUDA graph must not be reused outside of the graph.
    cache = None if not is_gpu else False
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32, cache_enabled=cache)


def storage_dtype(device: torch.device) -> torch.dtype:
    """Return the type of stored activations in the current context."""
    is_half = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_half else torch.float32


def without_autocast(function: Function) -> Function:
    """Make a function of tensors compute in the types of its code, within any `computing`."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        device = next(value for value in args if isinstance(value, Tensor)).device
        with torch.autocast(device.type, enabled=False):
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return True if torch has code that a GPU can run: of its major version, or PTX.

    Args:
        capability: Compute capability of the GPU, for example (8, 0).
        architectures: Architectures of this build of torch: "sm_80", or "compute_90" for PTX.
    """
    versions = {name: divmod(int(re.sub(r"\D", "", name)), 10) for name in architectures}
    return any(
        version <= capability and (version[0] == capability[0] or name.startswith("compute"))
        for name, version in versions.items()
    )


def log_device(recipe: Recipe) -> dict[str, Any]:
    """Log the device of a recipe's networks.

    Returns:
        The device, and on a GPU the precision, as plain values for a report.

    Raises:
        UsageError: The GPU lacks the precision of the recipe.
    """
    trainings = [t for t in map(recipe.training_of, recipe.all_models) if t is not None]
    if not trainings or network_device(recipe.accelerator) == CPU:
        log.info(f"device: CPU, {recipe.n_threads} thread{'s' * (recipe.n_threads > 1)}")
        return {"device": "CPU"}
    card, architectures = torch.cuda.get_device_properties(0), torch.cuda.get_arch_list()
    version, gib = (card.major, card.minor), card.total_memory / 2**30
    gpu = f"{card.name} (compute capability {card.major}.{card.minor}, {gib:.1f} GiB)"
    if not has_code_for(version, architectures):
        raise PipelineError(
            f"{gpu}: this torch has no code for it, only for {', '.join(architectures)}; install "
            "torch's cu126 wheel (docs/guides/gpu.md), or pass --set accelerator=cpu"
        )
    log.info(f"device: {gpu}")
    types = {precision_on(GPU, t.precision, version=version) for t in trainings}
    precision = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
    tf32 = any(map(allows_tf32, trainings))
    return {"device": gpu, "cuda": torch.version.cuda, "precision": precision, "tf32": tf32}


def to_halve(model: str, config: Any, keys: Sequence[str]) -> list[str]:
    """Name the keys of a model's config that can be halved, with their values."""
    values = [(key, getattr(config, key, 1)) for key in keys]
    return [f"{model}.{key} (now {value})" for key, value in values if value > 1]


@contextmanager
def explain_memory_errors(
    work: str, model: str, config: Any, keys: Sequence[str]
) -> Iterator[None]:
    """Raise a PipelineError with the keys to halve if the block exceeds a GPU's memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        options = ", ".join(to_halve(model, config, keys))
        # The rest of torch's message lists the other processes on the GPU.
        reason = str(error).partition(" Process ")[0].rstrip(".")
        no_options = "CUDA_VISIBLE_DEVICES= hides it: take the CPU"
        way = f"halve one of {options}" if options else no_options
        raise PipelineError(f"{work}: out of GPU memory: {reason}; {way}") from error
