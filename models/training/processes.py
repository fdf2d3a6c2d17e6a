"""Training on one process or several: Fabric gives the process group.

Each process computes the gradient of its own graphs; the sum over processes is the whole batch's.
It is summed in one message per step and not by wrapping the network, which is used through several
methods. Several processes are always on the CPU, see models/training/device.py.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from multiprocessing.resource_tracker import ensure_running
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from common.child_processes import children_end_with_block, end_with_parent, interrupts_held
from common.errors import OutOfTime, PipelineError, UsageError
from models.training.torchrun import launched, train_together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_RAISED = "common.errors."
POLL_S = 0.5


def _quiet() -> None:
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)


def one_process(device: torch.device) -> "Fabric":
    """Return the Fabric of a training that has this process to itself.

    Raises:
        UsageError: it is one of several.
    """
    from lightning_fabric import Fabric

    if torch.distributed.is_initialized():
        raise UsageError("training.processes: this model trains on one process; expected 1")
    _quiet()
    accelerator = "cuda" if device.type == "cuda" else "cpu"
    return Fabric(accelerator=accelerator, devices=1)


def on_processes(
    function: Callable[["Fabric", Any], None], argument: object, *, processes: int
) -> None:
    """Call function(fabric, argument) on several processes at once, and wait for all.

    The processes are new ones, or those that torchrun has started.

    Args:
        function: at the top level of a module.
        argument: can be pickled.

    Raises:
        PipelineError, OutOfTime: as the function on any of them.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    if launched():
        train_together(function, argument)
        return
    _quiet()
    fabric = Fabric(
        accelerator="cpu",
        devices=processes,
        strategy=DDPStrategy(start_method="spawn", process_group_backend="gloo"),
    )
    called = partial(_call, function=function, argument=argument)
    try:
        # On a thread of its own, so that this one answers an interrupt.
        with ThreadPoolExecutor(1) as thread, children_end_with_block():
            launch = thread.submit(_launch, fabric, called)
            while not wait([launch], POLL_S).done:  # an interrupt may have woken another thread
                pass
            stopped = launch.result()
    except ProcessExitedException as error:
        raise PipelineError(
            "training: one of its processes was ended from outside (out of memory?); the same "
            "command with --resume goes on"
        ) from error
    except ProcessRaisedException as error:
        last = str(error).strip().splitlines()[-1]  # "common.errors.PipelineError: …", one line
        name, _, message = last.removeprefix(_RAISED).partition(": ")
        if last.startswith(_RAISED):
            raise (UsageError if name == "UsageError" else PipelineError)(message) from error
        raise
    if stopped:
        raise OutOfTime(stopped)


def _launch(fabric: "Fabric", called: Callable[["Fabric"], str | None]) -> str | None:
    ensure_running()  # starting it would let interrupts through again
    with interrupts_held():
        stopped: str | None = fabric.launch(called)
    return stopped


def _call(
    fabric: "Fabric", function: Callable[["Fabric", Any], None], argument: object
) -> str | None:
    end_with_parent()
    try:
        function(fabric, argument)
    except OutOfTime as stop:  # all processes stop at the same step
        return str(stop)
    return None


def sum_over_processes(
    fabric: "Fabric", model: nn.Module, loss: Tensor, *, late: bool
) -> tuple[Tensor, bool]:
    """Sum each gradient over processes; return the sum of losses, and whether any is late.

    Args:
        loss: () this process's part.
    """
    if fabric.world_size == 1:
        return loss.detach(), late
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    used = [float(parameter.grad is not None) for parameter in parameters]
    facts = torch.tensor([loss.item(), float(late), *used])
    sums = fabric.all_reduce(
        torch.cat([facts, *(gradient.flatten() for gradient in gradients)]), reduce_op="sum"
    )
    assert isinstance(sums, Tensor)
    parts = sums.split([2, len(used), *(gradient.numel() for gradient in gradients)])
    for parameter, times, part in zip(parameters, parts[1].tolist(), parts[2:], strict=True):
        parameter.grad = part.view_as(parameter).clone() if times else None
    return parts[0][0], bool(parts[0][1] > 0)


def all_gather_text(fabric: "Fabric", text: str) -> list[str]:
    """Return what each process says, without the empty ones; the same on all of them."""
    if fabric.world_size == 1:
        return [text] if text else []
    told: list[str] = [""] * fabric.world_size
    torch.distributed.all_gather_object(told, text)
    return [line for line in told if line]
