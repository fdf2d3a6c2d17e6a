"""The training loop: one task, one optimiser, averaged weights, checkpoints that resume exactly.

Everything random in a step is drawn from (seed, step), so a run that is killed and resumed takes
the very same steps as an undisturbed one.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from common.atomic import write_text
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import out_of_time, progress
from models.config.networks import TrainingConfig
from models.run_folder import METRICS
from models.training.device import device_of
from models.training.jobs import TrainJob
from models.training.precision import computing, precision_on
from models.training.weights import load_tensors, save_tensors

CHECKPOINT = "checkpoint.safetensors"

Tensors = dict[str, Tensor]
StepLoss = tuple[Tensor, str]  # a step's loss, (), and which graphs it came from, for messages


class TrainingTask(Protocol):
    """What is trained: gives the loss of a step.

    It may have `prefetch(rng)`, which begins to read the graphs that `step_loss` will take with the
    same `rng`, and returns soon. One that can be stopped early has `evaluate(model) -> float`,
    which judges a model in evaluation mode on data no step learns from; higher is better.
    """

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Return the loss on a batch drawn with `rng`."""


@dataclass
class TrainingState:
    """What a training holds besides the model and the optimiser; all of it is in a checkpoint.

    Attributes:
        recent: losses, (), since the last line of metrics; NaN where a gradient was not finite.
        lines: metrics.jsonl so far.
        mean: of each parameter over the last steps.
        best_value: what `best` scored on held-out data; None before the first evaluation.
        waited: how many evaluations since then were no better.
        best: the parameters and buffers that ranked held-out data best.
        scale: of float16's gradients, as GradScaler has it; empty where they are not scaled.
    """

    step: int = 0
    recent: list[Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    mean_count: int = 0
    mean: Tensors = field(default_factory=dict)
    best_value: float | None = None
    waited: int = 0
    best: Tensors = field(default_factory=dict)
    scale: dict[str, Any] = field(default_factory=dict)

    def losses(self) -> list[float]:
        """Return the recent losses; a GPU is waited for."""
        return torch.stack(self.recent).cpu().tolist() if self.recent else []

    def log(self, **values: float) -> None:
        """Add a line of metrics for the steps done so far."""
        self.lines.append(json.dumps({"step": self.step, **values}))

    @torch.no_grad()
    def average(self, model: nn.Module) -> None:
        """Take the parameters into the mean.

        It is the plain mean over the last share of the steps (Izmailov et al., "Averaging Weights
        Leads to Wider Optima and Better Generalization", 2018).
        """
        self.mean_count += 1
        named = dict(model.named_parameters())
        if not self.mean:
            self.mean = {name: parameter.detach().clone() for name, parameter in named.items()}
            return
        means = list(self.mean.values())
        apart = torch._foreach_sub([named[name] for name in self.mean], means)
        torch._foreach_div_(apart, self.mean_count)
        torch._foreach_add_(means, apart)

    @contextmanager
    def averaged(self, model: nn.Module) -> Iterator[None]:
        """Let `model` have the mean weights while the block runs; its own where there are none."""
        live = {name: value.detach().clone() for name, value in model.named_parameters()}
        _put(self.mean, model)
        try:
            yield
        finally:
            _put(live, model)

    def keep_if_best(self, value: float, model: nn.Module) -> None:
        """Keep the model's weights if `value` is higher than all before."""
        if self.best_value is None or value > self.best_value:
            self.best_value, self.waited = value, 0
            self.best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        else:
            self.waited += 1


def fit(
    model: nn.Module,
    task: TrainingTask,
    config: TrainingConfig,
    job: TrainJob,
    device: torch.device,
) -> None:
    """Train `model` in place as `job` says, from the last checkpoint in its folder, if any.

    Writes metrics.jsonl, one line per logged step and evaluation, and a checkpoint at regular
    steps. The model ends on `device`, where the task's tensors are, with the best weights on
    held-out data if there are such, else with the mean of the last ones if they are averaged, else
    with the last.

    Raises:
        PipelineError: a loss or a gradient is NaN or infinite, or a checkpoint is damaged.
        UsageError: an early stop of a task that cannot be judged.
        OutOfTime: the time is over and steps are left; they are for the next call.
    """
    if config.early_stop and not hasattr(task, "evaluate"):
        raise UsageError("training.early_stop: this model holds nothing out; expected 0")
    model.to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )
    state = _load_state(model, optimiser, job.run_dir)
    is_scaled = precision_on(device, config.precision) == torch.float16
    scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
    if state.scale:
        scaler.load_state_dict(state.scale)
    training = _Training(model, task, optimiser, config, job, device, scaler)
    model.train()
    while not _has_ended(state, config):
        is_late = out_of_time()
        if hasattr(task, "prefetch") and state.step + 1 < config.steps and not is_late:
            task.prefetch(training.draws(state.step + 1))
        state.recent.append(training.take_step(state.step))
        state.step += 1
        if state.step > config.swa_start * config.steps:
            state.average(model)
        value = training.held_out_value(state)
        ended = _has_ended(state, config)
        saves = state.step % config.checkpoint_every == 0 or ended
        if state.step % config.log_every == 0 or saves:
            training.check(state)
            state.log(loss=round(float(np.mean(state.losses())), 6))
            state.recent.clear()
        if value is not None:
            state.log(held_out=round(value, 6))
        if saves or is_late:
            training.check(state)
            state.scale = scaler.state_dict()
            _save_state(state, model, optimiser, job.run_dir)
        progress("train", config.steps if ended else state.step, config.steps)
        if is_late and not ended:
            raise OutOfTime(f"{job.run_dir}: out of time at step {state.step} of {config.steps}")
    _put(state.best or state.mean, model)
    model.eval()


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the share of the learning rate at `step`: linear warm-up, then a cosine to 0."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    span = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / span)))


def _has_ended(state: TrainingState, config: TrainingConfig) -> bool:
    gave_up = 0 < config.early_stop <= state.waited
    return state.step >= config.steps or gave_up


@torch.no_grad()
def _put(tensors: Tensors, model: nn.Module) -> None:
    own = model.state_dict()
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


@dataclass(frozen=True)
class _Training:
    """What does not change from step to step."""

    model: nn.Module
    task: TrainingTask
    optimiser: torch.optim.Optimizer
    config: TrainingConfig
    job: TrainJob
    device: torch.device
    scaler: torch.amp.GradScaler

    def take_step(self, step: int) -> Tensor:
        """Update the weights; return the batch's loss, ().

        A GPU is not waited for: a loss or a gradient that is not finite makes the loss NaN, which
        `check` finds. On a CPU that stops the training at once.
        """
        draws = np.random.SeedSequence([self.job.seed, step, 0])  # of dropout and the like
        torch.manual_seed(int(draws.generate_state(1)[0]))
        with computing(self.device, self.config.precision):
            loss, graphs = self.task.step_loss(self.model, self.draws(step))
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * learning_rate_factor(step, self.config)
        self.optimiser.zero_grad(set_to_none=True)
        is_cpu, where = self.device.type == "cpu", f"at step {step}, graph {graphs}"
        if is_cpu and not torch.isfinite(loss):
            self._stop(f"the loss is {loss.item()} {where}")
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        grads = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        norms = torch._foreach_norm(list(grads.values()))
        norm = torch.linalg.vector_norm(torch.stack(norms))
        loss = loss.detach()
        if not self.scaler.is_enabled():  # else such a step is left out, and the scale lowered
            loss = torch.where(torch.isfinite(norm), loss, torch.nan)
        if is_cpu and not torch.isfinite(loss):
            broken = [f"of {name} " for name, grad in grads.items() if not grad.isfinite().all()]
            self._stop(f"the gradient {''.join(broken[:1])}is not finite {where}")
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss

    def check(self, state: TrainingState) -> None:
        """Stop if a recent loss or gradient was not finite."""
        losses = state.losses()
        if not np.isfinite(losses).all():
            step = state.step - len(losses) + int(np.argmin(np.isfinite(losses)))
            self._stop(f"the loss or a gradient is not finite at step {step}")

    def draws(self, step: int) -> np.random.Generator:
        """Return what a step's graphs and configs are drawn with."""
        return np.random.default_rng([self.job.seed, step])

    def held_out_value(self, state: TrainingState) -> float | None:
        """Judge the weights, or their mean, where it is time to; keep them if they are the best."""
        config = self.config
        is_time = state.step % config.eval_interval == 0 or state.step == config.steps
        if not (config.early_stop and is_time):
            return None
        assert hasattr(self.task, "evaluate")
        with state.averaged(self.model), computing(self.device, config.precision):
            self.model.eval()
            value = self.task.evaluate(self.model)
            if not math.isfinite(value):
                self._stop(f"the held-out value is {value} at step {state.step}")
            state.keep_if_best(value, self.model)
        self.model.train()
        return value

    def _stop(self, fault: str) -> NoReturn:
        checkpoint = self.job.run_dir / CHECKPOINT
        kept = (
            f"the last good state is {checkpoint}" if checkpoint.exists() else "nothing was saved"
        )
        raise PipelineError(f"training: {fault}; {kept}; a lower learning rate may help")


def _save_state(
    state: TrainingState, model: nn.Module, optimiser: torch.optim.Optimizer, run_dir: Path
) -> None:
    write_text(run_dir / METRICS, "".join(f"{line}\n" for line in state.lines))
    facts = {**vars(state), "recent": state.losses()}
    parts = {"model": model.state_dict(), "mean": facts.pop("mean"), "best": facts.pop("best")}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimiser.state[parameter].items():
            parts.setdefault(f"optimiser.{moment}", {})[name] = tensor
    tensors = {f"{part}.{name}": t for part, named in parts.items() for name, t in named.items()}
    save_tensors(run_dir / CHECKPOINT, tensors, facts)


def _load_state(model: nn.Module, optimiser: torch.optim.Optimizer, run_dir: Path) -> TrainingState:
    """Put the checkpoint, if there is one, into the model and the optimiser; return the rest.

    Raises:
        PipelineError: the checkpoint is damaged, or another model's.
    """
    path = run_dir / CHECKPOINT
    if not path.exists():
        return TrainingState()
    tensors, facts = load_tensors(path)
    try:
        model.load_state_dict(_with_prefix(tensors, "model."))
        parameters = dict(model.named_parameters())
        for key, tensor in _with_prefix(tensors, "optimiser.").items():
            moment, _, name = key.partition(".")
            is_host = moment == "step" and not optimiser.defaults["fused"]
            device = tensor.device if is_host else parameters[name].device
            optimiser.state[parameters[name]][moment] = tensor.to(device)
        recent = torch.tensor(facts["recent"], device=device_of(model))
        known: dict[str, Any] = {**facts, "recent": list(recent)}
        for part in ("mean", "best"):
            named = _with_prefix(tensors, f"{part}.")
            known[part] = {name: t.to(device_of(model)) for name, t in named.items()}
        return TrainingState(**known)
    except (RuntimeError, KeyError, TypeError) as error:
        raise PipelineError(f"{path}: was written by another model; remove it") from error


def _with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
