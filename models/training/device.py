"""Where networks are computed, and in what: on a CUDA GPU where there is one, else on the CPU.

Everything random but dropout is drawn on the host, so that a seed takes the same graphs and configs
on either. What is fixed of a graph is moved once; of configs a step moves those that it takes.

What activations are stored in, a recipe's `precision`, stands in torch's autocast, which plain
layers follow by themselves; networks that store activations by operations of their own ask
`storage_dtype`. Weights, norms, sums of softmaxes, pooling and losses are float32 always.
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

KEPT_BYTES = 512 << 20  # of what ranking keeps of configs between two blocks, on a CPU
MAX_TENSOR_BYTES = 2 << 30  # keeps the number of values in 31 bits
CPU, GPU = torch.device("cpu"), torch.device("cuda")
BFLOAT16_CAPABILITY = 8, 0
STEP_KEYS = ("configs_per_step", "graphs_per_step", "kernels_per_step", "configs_per_kernel")
TRAINING_KEYS = (*STEP_KEYS, "hidden")
RANKING_KEYS = ("inference_tensor_mib", "inference_configs")


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


def uploaded(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`, as `sent`; a tensor is there already."""
    return array if isinstance(array, Tensor) else sent([array], device)[0]


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
    # Sets the flags of `use_deterministic_algorithms`, which also imports torch's compiler (1 s).
    torch.set_deterministic_debug_mode("error" if device.type == "cpu" else "warn")
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
    """Return what networks are trained on and rank on, by a recipe's key."""
    return GPU if accelerator != "cpu" and torch.cuda.is_available() else CPU


def ranking_bytes(device: torch.device, tensor_mib: int) -> tuple[int, int]:
    """Return how many bytes a chunk's tensor may take in ranking, and what is kept between blocks.

    On a CPU as a recipe says, which is a cache's size; on a GPU by the memory that is free.
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
    dtype, is_gpu = precision_on(device, precision), device.type == "cuda"
    # A cast that a CUDA graph made must not be taken for one that is there outside of it.
    cached = None if not is_gpu else False
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32, cache_enabled=cached)


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


def has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Tell whether torch has code that a GPU can run: of its major version, or PTX.

    Args:
        capability: Compute capability of the GPU, for example (8, 0).
        architectures: Architectures that torch was built for: "sm_80", or "compute_90" for PTX.
    """
    built = {name: divmod(int(re.sub(r"\D", "", name)), 10) for name in architectures}
    return any(
        own <= capability and (own[0] == capability[0] or name.startswith("compute"))
        for name, own in built.items()
    )


def tell_device(recipe: Recipe) -> dict[str, Any]:
    """Log what a recipe's networks are computed on; return the same as plain values, for a report.

    Raises:
        PipelineError: torch holds no code for the GPU.
        UsageError: it does not compute the precision that the recipe asks for.
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
    """Name those of `keys` that a model's config has and that can be halved, with their values."""
    values = [(key, getattr(config, key, 1)) for key in keys]
    return [f"{model}.{key} (now {value})" for key, value in values if value > 1]


@contextmanager
def memory_told(work: str, model: str, config: Any, keys: Sequence[str]) -> Iterator[None]:
    """Raise PipelineError where a GPU's memory does not suffice in the block: what to halve."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        named = ", ".join(to_halve(model, config, keys))
        told = str(error).partition(" Process ")[0].rstrip(".")  # then come all that use the GPU
        way = f"halve one of {named}" if named else "CUDA_VISIBLE_DEVICES= hides it: take the CPU"
        raise PipelineError(f"{work}: out of GPU memory: {told}; {way}") from error
