"""Where networks are computed: on a CUDA GPU where there is one, else on the CPU.

Everything random but dropout is drawn on the host, so that a seed takes the same graphs and configs
on either. What is fixed of a graph is moved to the device once; configs and runtimes stay on the
host, and of these a step moves those of its own sample.
"""

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from common.errors import UsageError

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
    if isinstance(value, Tensor | OnDevice):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    return value


def training_device(accelerator: str, *, processes: int) -> torch.device:
    """Return what a network is trained on; several processes are always on the CPU.

    Args:
        accelerator: as in a recipe.
        processes: on how many it is trained.

    Raises:
        UsageError: a GPU is asked for where there is none, or for several processes.
    """
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "accelerator = cuda: torch finds no CUDA GPU on this machine; expected auto or cpu"
        )
    if accelerator == "cuda" and processes > 1:
        raise UsageError(
            f"accelerator = cuda: {processes} processes train on the CPU; "
            "expected training.processes = 1, or accelerator auto or cpu"
        )
    return CPU if processes > 1 else ranking_device(accelerator)


def ranking_device(accelerator: str) -> torch.device:
    """Return what a trained network ranks on, wherever it was trained.

    Args:
        accelerator: as in the recipe that it was trained by; without a GPU at hand, "cuda" does not
            keep a model from ranking.
    """
    return GPU if accelerator != "cpu" and torch.cuda.is_available() else CPU


def device_of(model: nn.Module) -> torch.device:
    """Return where a network's weights lie."""
    return next(model.parameters()).device
