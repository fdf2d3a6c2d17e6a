"""The training loop: one task, one optimiser, checkpoints that resume exactly.

Everything random in a step is drawn from (seed, step), so a run that is killed and resumed takes
the very same steps as an undisturbed one.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import out_of_time, progress
from models.config.networks import TrainingConfig
from models.training.checkpoint import CHECKPOINT, TrainingState, load_state, save_state
from models.training.device import CPU
from models.training.jobs import TrainJob
from models.training.processes import all_gather_text, one_process, sum_over_processes
from models.training.weight_averaging import put

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class StepLoss:
    """A step's loss, and which graphs it came from, for messages.

    On several processes each has its part of the loss: their sum is the step's.
    """

    loss: Tensor
    graphs: str


class Task(Protocol):
    """What is trained: gives the loss of a step."""

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Return the loss on a batch drawn with `rng`."""


@runtime_checkable
class PrefetchingTask(Task, Protocol):
    """A task that can begin to read what a later step takes."""

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the graphs that `step_loss` will take with the same `rng`; returns soon."""


@runtime_checkable
class JudgedTask(Task, Protocol):
    """A task that can be stopped early."""

    def evaluate(self, model: nn.Module) -> float:
        """Judge a model in evaluation mode on data no step learns from; higher is better."""


def fit(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    *,
    seed: int,
    run_dir: Path,
    fabric: "Fabric | None" = None,
    device: torch.device = CPU,
) -> None:
    """Train `model` in place, from the last checkpoint in `run_dir` if there is one.

    Writes metrics.jsonl, one line per logged step and evaluation, and a checkpoint at regular
    steps. The model ends with the best weights on held-out data if there are such, else with the
    mean of the last ones if they are averaged, else with the last.

    Args:
        fabric: this process's place among several; None if it is the only one.
        device: where the task's tensors are; the model is moved there and stays.

    Raises:
        PipelineError: a loss or a gradient is NaN or infinite; names the step, the graphs, and the
            last good checkpoint.
        UsageError: an early stop of a task that cannot be judged.
        OutOfTime: the time is over and steps are left; they are for the next call.
    """
    if config.early_stop and not isinstance(task, JudgedTask):
        raise UsageError("training.early_stop: this model holds nothing out; expected 0")
    fabric = fabric or one_process(config.precision, device)
    model.to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    state = load_state(model, optimiser, run_dir)
    training = _Training(fabric, model, task, optimiser, config, seed, run_dir)
    model.train()
    while not _has_ended(state, config):
        is_late = out_of_time()
        if isinstance(task, PrefetchingTask) and state.step + 1 < config.steps and not is_late:
            task.prefetch(training.draws(state.step + 1))
        loss, is_late = training.take_step(state.step, is_late=is_late)
        state.step += 1
        state.recent.append(loss)
        if state.step > config.swa_start * config.steps:
            state.mean.add(model)
        value = training.held_out_value(state)
        ended = _has_ended(state, config)
        saves = state.step % config.checkpoint_every == 0 or ended
        if state.step % config.log_every == 0 or saves:
            state.log(loss=round(float(np.mean(state.recent)), 6))
            state.recent.clear()
        if value is not None:
            state.log(held_out=round(value, 6))
        if (saves or is_late) and fabric.is_global_zero:
            save_state(state, model, optimiser, run_dir)
        progress("train", config.steps if ended else state.step, config.steps)
        if is_late and not ended:
            raise OutOfTime(f"{run_dir}: out of time at step {state.step} of {config.steps}")
    put(state.best.tensors or state.mean.tensors, model)
    model.eval()


def fit_job(
    model: nn.Module, task: Task, config: TrainingConfig, job: TrainJob, device: torch.device
) -> None:
    """Train `model` in place on `device` as `job` says; see `fit`."""
    fit(
        model,
        task,
        config,
        seed=job.seed,
        run_dir=job.run_dir,
        fabric=job.fabric,
        device=device,
    )


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the share of the learning rate at `step`: linear warm-up, then a cosine to 0."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    span = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / span)))


def _has_ended(state: TrainingState, config: TrainingConfig) -> bool:
    gave_up = 0 < config.early_stop <= state.best.waited
    return state.step >= config.steps or gave_up


@dataclass(frozen=True)
class _Training:
    """What does not change from step to step."""

    fabric: "Fabric"
    model: nn.Module
    task: Task
    optimiser: torch.optim.Optimizer
    config: TrainingConfig
    seed: int
    run_dir: Path

    def take_step(self, step: int, *, is_late: bool) -> tuple[float, bool]:
        """Update the weights; return the batch's loss, and whether any process is late."""
        rank = self.fabric.global_rank
        draws = np.random.SeedSequence([self.seed, step, rank])  # for dropout and the like
        torch.manual_seed(int(draws.generate_state(1)[0]))
        with self.fabric.autocast():
            batch = self.task.step_loss(self.model, self.draws(step))
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * learning_rate_factor(step, self.config)
        self.optimiser.zero_grad(set_to_none=True)
        if batch.loss.requires_grad and torch.isfinite(batch.loss):
            batch.loss.backward()
        fault = _fault(batch, self.model, step) if self.fabric.world_size > 1 else ""
        loss, is_late = sum_over_processes(self.fabric, self.model, batch.loss, late=is_late)
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not (math.isfinite(loss) and torch.isfinite(norm)):
            self._stop(fault or _fault(batch, self.model, step))
        nn.utils.clip_grads_with_norm_(parameters, self.config.clip_norm, norm)
        self.optimiser.step()
        return loss, is_late

    def draws(self, step: int) -> np.random.Generator:
        """Return what a step's graphs and configs are drawn with."""
        return np.random.default_rng([self.seed, step])

    def held_out_value(self, state: TrainingState) -> float | None:
        """Judge the weights, or their mean, where it is time to; keep them if they are the best."""
        config = self.config
        is_time = state.step % config.eval_interval == 0 or state.step == config.steps
        if not (config.early_stop and is_time):
            return None
        assert isinstance(self.task, JudgedTask)
        with state.mean.in_place_of(self.model):
            self.model.eval()
            value = self.task.evaluate(self.model) if self.fabric.is_global_zero else 0.0
            value = self.fabric.broadcast(value)
            if not math.isfinite(value):
                self._stop(f"the held-out value is {value} at step {state.step}")
            state.best.offer(value, self.model)
        self.model.train()
        return value

    def _stop(self, fault: str) -> NoReturn:
        checkpoint = self.run_dir / CHECKPOINT
        kept = (
            f"the last good state is {checkpoint}" if checkpoint.exists() else "nothing was saved"
        )
        told = all_gather_text(self.fabric, fault)
        raise PipelineError(f"training: {'; '.join(told)}; {kept}; a lower learning rate may help")


def _fault(batch: StepLoss, model: nn.Module, step: int) -> str:
    """Say what is not finite and where; "" if all is."""
    where = f" at step {step}, graph {batch.graphs}"
    if not torch.isfinite(batch.loss):
        return f"the loss is {batch.loss.item()}{where}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is not finite{where}"
    return ""
