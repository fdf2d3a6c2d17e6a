"""The GPU of this machine: what it is called, and in plain words why torch cannot use it."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from common.errors import PipelineError
from common.progress import log
from models.config.recipe import Recipe
from models.training.device import GPU, allows_tf32
from models.training.precision import precision_on

OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}  # by the first number of torch's CUDA
OLDER_WHEEL = "install torch's cu126 wheel, for driver 525 or newer (docs/training.md)"
STEP_KEYS = ("configs_per_step", "graphs_per_step", "kernels_per_step", "configs_per_kernel")
TRAINING_KEYS = (*STEP_KEYS, "hidden")
RANKING_KEYS = ("inference_tensor_mib", "inference_configs")


@dataclass(frozen=True)
class Gpu:
    """The first NVIDIA GPU of a machine, as its driver and this torch see it.

    Attributes:
        driver: version of NVIDIA's driver, "unknown" where it does not say.
        torch_cuda: the CUDA that torch was built for; None for a build without.
        usable: torch can start CUDA; what follows is known only then.
        capability: compute capability, such as (7, 5).
        architectures: what torch holds code for, such as "sm_80", or "compute_90" (PTX).
    """

    driver: str
    torch_cuda: str | None
    usable: bool
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    memory_bytes: int = 0
    architectures: Sequence[str] = ()

    @property
    def is_supported(self) -> bool:
        """Tell whether torch holds code that the GPU can run: of its major version, or PTX."""
        for name in self.architectures:
            built = divmod(int(re.sub(r"\D", "", name)), 10)
            runs = built[0] == self.capability[0] or name.startswith("compute")
            if runs and built <= self.capability:
                return True
        return False

    def __str__(self) -> str:
        """Name it: "NVIDIA T4 (compute capability 7.5, 14.7 GiB, driver 550.54)"."""
        capability, gib = ".".join(map(str, self.capability)), self.memory_bytes / 2**30
        return f"{self.name} (compute capability {capability}, {gib:.1f} GiB, driver {self.driver})"


def gpu_here() -> Gpu | None:
    """Look for a GPU; None where neither the driver nor torch knows of one."""
    driver, usable = _driver(), torch.cuda.is_available()
    if not usable:
        return Gpu(driver, torch.version.cuda, usable=False) if driver else None
    card, driver = torch.cuda.get_device_properties(0), driver or "unknown"
    facts = card.name, (card.major, card.minor), card.total_memory, torch.cuda.get_arch_list()
    return Gpu(driver, torch.version.cuda, usable, *facts)


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.check_output(command, text=True, timeout=30, stderr=subprocess.DEVNULL)  # noqa: S603
        return told.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown" if Path("/dev/nvidia0").exists() else None


def why_unused(gpu: Gpu, visible: str | None) -> str:
    """Say why torch cannot start CUDA on a GPU, and what to do; `visible`: CUDA_VISIBLE_DEVICES."""
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible} hides it"
    if gpu.torch_cuda is None:
        return f"this torch is built without CUDA; install PyPI's wheel, or {OLDER_WHEEL}"
    oldest = OLDEST_DRIVER.get(gpu.torch_cuda.partition(".")[0], 0)
    major = gpu.driver.partition(".")[0]
    if major.isdecimal() and int(major) < oldest:
        return (
            f"its driver {gpu.driver} is too old for CUDA {gpu.torch_cuda} of this torch; expected "
            f"{oldest} or newer: update the driver, or {OLDER_WHEEL}"
        )
    return 'torch cannot start CUDA; `python -c "import torch; torch.cuda.init()"` says why'


def tell_device(recipe: Recipe, gpu: Gpu | None) -> dict[str, Any]:
    """Log what a recipe's networks are computed on, and warn of a GPU that lies idle.

    Returns:
        The same as plain values, for a report.

    Raises:
        PipelineError: torch holds no code for the GPU.
        UsageError: it does not compute the precision that the recipe asks for.
    """
    trainings = [t for t in map(recipe.training_of, recipe.all_models) if t is not None]
    wanted = recipe.accelerator != "cpu" and bool(trainings)
    if gpu is None or not gpu.usable or not wanted:
        log.info(f"device: CPU, {recipe.n_threads} thread{'s' * (recipe.n_threads > 1)}")
        if gpu and not gpu.usable and wanted:
            why = why_unused(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
            log.warning(f"WARNING: this machine's GPU is not used: {why}")
        return {"device": "CPU"}
    if not gpu.is_supported:
        raise PipelineError(
            f"{gpu}: this torch has no code for it, only for {', '.join(gpu.architectures)}; "
            f"{OLDER_WHEEL}, or pass --set accelerator=cpu"
        )
    log.info(f"device: {gpu}")
    types = {precision_on(GPU, t.precision, version=gpu.capability) for t in trainings}
    precision = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
    tf32 = any(map(allows_tf32, trainings))
    return {"device": str(gpu), "cuda": gpu.torch_cuda, "precision": precision, "tf32": tf32}


def to_halve(model: str, config: Any, keys: Sequence[str]) -> list[str]:
    """Name those of `keys` that a model's config has and that can be halved, with their values."""
    values = [(key, getattr(config, key, 1)) for key in keys]
    return [f"{model}.{key} (now {value})" for key, value in values if value > 1]


@contextmanager
def memory_told(work: str, model: str, config: Any, keys: Sequence[str]) -> Iterator[None]:
    """Turn a GPU's lack of memory in the block into a line that names what to halve.

    Args:
        config: of `model`, of which those of `keys` are named that it has.

    Raises:
        PipelineError: the memory did not suffice.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        named = ", ".join(to_halve(model, config, keys))
        told = str(error).partition(" Process ")[0].rstrip(".")  # then come all that use the GPU
        way = f"halve one of {named}" if named else "CUDA_VISIBLE_DEVICES= hides it: take the CPU"
        raise PipelineError(f"{work}: out of GPU memory: {told}; {way}") from error
