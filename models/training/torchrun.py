"""Training on processes that torchrun has started, on one machine or several.

The first process runs the command as if it were alone: it alone reads the data's folders, writes,
prints and holds locks. The others wait for what it sends: a training to take part in, or the exit
code to end with. All see the same folders.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from common.errors import OutOfTime, PipelineError, UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from models.config.networks import TrainingConfig

PATIENCE = timedelta(days=30)  # the first may pack a dataset, or train what it trains alone
ENDED = "training: another process has ended; its own message says why"
STOPPING = timedelta(seconds=10)  # in which all notice a fault that all have


@dataclass(frozen=True)
class Launched:
    """This process among those that torchrun started.

    Attributes:
        rank: its number; the first is 0.
        n_here: how many on this machine.
    """

    rank: int
    n_processes: int
    n_here: int


def launched() -> Launched | None:
    """Return what torchrun says of this process; None if it is alone, or not torchrun's."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    found = Launched(*(int(os.environ[name]) for name in names))
    return found if found.n_processes > 1 else None


def check_processes(model: str, training: "TrainingConfig | None") -> None:
    """Raise UsageError where a training shall have another number of processes than there are."""
    found = launched()
    if found and training and training.processes != found.n_processes:
        raise UsageError(
            f"{model}.training.processes = {training.processes}: torchrun started "
            f"{found.n_processes} processes; expected {found.n_processes}"
        )


def lead(command: Callable[[], None], exit_code: Callable[[Exception], int]) -> None:
    """Run a command on the first process, then let the others end with its exit code.

    Raises:
        Exception: as the command.
    """
    import torch.distributed

    _fabric()
    code = 0
    try:
        command()
    except Exception as error:
        code = exit_code(error)
        raise
    finally:
        if torch.distributed.is_initialized():  # else a training has ended on some alone
            _send(code)
            torch.distributed.destroy_process_group()


def follow() -> int:
    """Take part in what the first process leads, until it ends; return its exit code.

    Raises:
        PipelineError: this process has failed and the first one cannot know why.
    """
    import torch.distributed

    launch = launched()
    assert launch is not None
    _fabric()
    while True:
        try:
            message = _send(None)
        except RuntimeError as error:
            raise PipelineError(f"process {launch.rank}: {ENDED}") from error
        if isinstance(message, int):
            torch.distributed.destroy_process_group()
            return message
        try:
            _take_part(*message)
        except (OutOfTime, PipelineError) as error:
            if not torch.distributed.is_initialized():
                raise PipelineError(f"process {launch.rank}: {error}") from error


def train_together(
    function: Callable[["Fabric", Any], None],
    argument: object,
) -> None:
    """Call function(fabric, argument) on all processes at once; of these, this is the first.

    Raises:
        PipelineError, OutOfTime: as the function here, or a process has ended.
    """
    message = (function, argument)
    _send(message)
    _take_part(*message)


def _take_part(function: Callable[["Fabric", Any], None], argument: object) -> None:
    import torch.distributed

    try:
        function(_fabric(), argument)
    except Exception as error:
        try:
            torch.distributed.monitored_barrier(timeout=STOPPING)
        except RuntimeError:
            torch.distributed.destroy_process_group()
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            raise PipelineError(ENDED) from error
        raise


def _send(message: object) -> Any:
    import torch.distributed

    messages = [message]
    torch.distributed.broadcast_object_list(messages, src=0)
    return messages[0]


def _fabric() -> "Fabric":
    """Return this process's place among all; the first time, wait until all are there.

    Raises:
        UsageError: machines with different numbers of processes.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    launch = launched()
    assert launch is not None
    if launch.n_processes % launch.n_here:
        raise UsageError("torchrun: expected the same --nproc-per-node on all machines")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator="cpu",
        devices=launch.n_here,
        num_nodes=launch.n_processes // launch.n_here,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=PATIENCE),
    )
    fabric.launch()
    return fabric
