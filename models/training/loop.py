"""The training loop: one task, one optimiser, averaged weights, checkpoints that resume exactly.

Everything random in a step is drawn from (seed, step), so a run that is killed and resumed takes
the very same steps as an undisturbed one.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from common.errors import OutOfTime, PipelineError, UsageError
from common.files import SEAL_KEY, UNSEALED, check_seal, write_sealed, write_text
from common.progress import out_of_time, progress
from features.scaling import NodeScaler
from models.config.networks import TrainingConfig
from models.registry import TrainJob
from models.run_folder import METRICS
from models.training.device import computing, precision_on

WEIGHTS = "model.safetensors"
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
    """What a training holds besides the model and the optimiser; all of it is in a checkpoint."""

    step: int = 0
    recent: list[Tensor] = field(default_factory=list)  # losses, (), since the last line
    lines: list[str] = field(default_factory=list)  # metrics.jsonl so far
    mean_count: int = 0
    mean: Tensors = field(default_factory=dict)  # of each parameter over the last steps
    best_value: float | None = None  # on held-out data
    waited: int = 0  # evaluations since then that were no better
    best: Tensors = field(default_factory=dict)  # parameters and buffers of `best_value`
    scale: dict[str, Any] = field(default_factory=dict)  # of float16's gradients, by GradScaler

    def losses(self) -> list[float]:
        """Return the recent losses; a GPU is waited for."""
        return torch.stack(self.recent).cpu().tolist() if self.recent else []

    def log(self, **values: float) -> None:
        self.lines.append(json.dumps({"step": self.step, **values}))

    @torch.no_grad()
    def average(self, model: nn.Module) -> None:
        """Take the parameters into the plain mean over the last share of the steps.

        Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", 2018.
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

    The model ends on `device`, where the task's tensors are, with the best weights on held-out data
    if there are such, else with the mean of the last ones if they are averaged, else with the last.

    Raises:
        PipelineError: a loss or a gradient is NaN or infinite, or a checkpoint is damaged.
        UsageError: an early stop of a task that cannot be judged.
        OutOfTime: the time is over and steps are left; they are for the next call.
    """
    if config.early_stop and not hasattr(task, "evaluate"):
        raise UsageError("training.early_stop: this model holds nothing out; expected 0")
    training = _Training(model.to(device), task, config, job, device)
    state = training.state
    model.train()
    while not training.has_ended():
        is_late = out_of_time()
        if hasattr(task, "prefetch") and state.step + 1 < config.steps and not is_late:
            task.prefetch(training.draws(state.step + 1))
        state.recent.append(training.take_step())
        state.step += 1
        if state.step > config.swa_start * config.steps:
            state.average(model)
        value = training.held_out_value()
        ended = training.has_ended()
        saves = state.step % config.checkpoint_every == 0 or ended
        if state.step % config.log_every == 0 or saves:
            training.check()
            state.log(loss=round(float(np.mean(state.losses())), 6))
            state.recent.clear()
        if value is not None:
            state.log(held_out=round(value, 6))
        if saves or is_late:
            training.check()
            training.save()
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


@torch.no_grad()
def _put(tensors: Tensors, model: nn.Module) -> None:
    own = model.state_dict()
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


class _Training:
    """A training under way, from its last checkpoint on."""

    def __init__(
        self,
        model: nn.Module,
        task: TrainingTask,
        config: TrainingConfig,
        job: TrainJob,
        device: torch.device,
    ) -> None:
        self.model, self.task, self.config, self.job = model, task, config, job
        self.device, self.checkpoint = device, job.run_dir / CHECKPOINT
        if not any(True for _ in model.parameters()):
            raise PipelineError(f"model '{job.model}': has no parameters; expected some to train")
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=device.type == "cuda",
        )
        self.state = self._load() if self.checkpoint.exists() else TrainingState()
        is_scaled = precision_on(device, config.precision) == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
        if self.state.scale:
            self.scaler.load_state_dict(self.state.scale)

    def has_ended(self) -> bool:
        gave_up = 0 < self.config.early_stop <= self.state.waited
        return self.state.step >= self.config.steps or gave_up

    def take_step(self) -> Tensor:
        """Update the weights; return the batch's loss, (), NaN if it or a gradient is not finite.

        On a CPU that stops the training at once; a GPU is not waited for: `check` finds it.
        """
        step = self.state.step
        draws = np.random.SeedSequence([self.job.seed, step, 0])  # of dropout and the like
        torch.manual_seed(int(draws.generate_state(1)[0]))
        self.optimiser.zero_grad(set_to_none=True)
        with computing(self.device, self.config.precision):
            loss, graphs = self.task.step_loss(self.model, self.draws(step))
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * learning_rate_factor(step, self.config)
        if loss.requires_grad:  # a recorded step has its gradients already
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        loss = loss.detach()
        if not self.scaler.is_enabled():  # else such a step is left out, and the scale lowered
            loss = torch.where(torch.isfinite(norm), loss, torch.nan)
        if self.device.type == "cpu" and not torch.isfinite(loss):
            self._stop(f"the loss or a gradient is not finite at step {step}, graph {graphs}")
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss

    def check(self) -> None:
        losses = self.state.losses()
        if not np.isfinite(losses).all():
            step = self.state.step - len(losses) + int(np.argmin(np.isfinite(losses)))
            self._stop(f"the loss or a gradient is not finite at step {step}")

    def draws(self, step: int) -> np.random.Generator:
        return np.random.default_rng([self.job.seed, step])

    def held_out_value(self) -> float | None:
        """Judge the weights, or their mean, where it is time to; keep them if they are the best."""
        config, state = self.config, self.state
        is_time = state.step % config.eval_interval == 0 or state.step == config.steps
        if not (config.early_stop and is_time):
            return None
        assert hasattr(self.task, "evaluate")
        with state.averaged(self.model), computing(self.device, config.precision):
            self.model.eval()
            value: float = self.task.evaluate(self.model)
            if not math.isfinite(value):
                self._stop(f"the held-out value is {value} at step {state.step}")
            state.keep_if_best(value, self.model)
        self.model.train()
        return value

    def _stop(self, fault: str) -> NoReturn:
        exists = self.checkpoint.exists()
        kept = f"the last good state is {self.checkpoint}" if exists else "nothing was saved"
        rate = "; a lower learning rate may help" if self.state.step else ""
        raise PipelineError(f"train {self.job.model}: {fault}; {kept}{rate}")

    def save(self) -> None:
        state = self.state
        write_text(self.job.run_dir / METRICS, "".join(f"{line}\n" for line in state.lines))
        facts = {**vars(state), "recent": state.losses(), "scale": self.scaler.state_dict()}
        parts = {"model": self.model.state_dict()}
        parts |= {part: facts.pop(part) for part in ("mean", "best")}
        for name, parameter in self.model.named_parameters():
            for moment, tensor in self.optimiser.state[parameter].items():
                parts.setdefault(f"optimiser.{moment}", {})[name] = tensor
        named = {f"{part}.{name}": t for part, own in parts.items() for name, t in own.items()}
        save_tensors(self.checkpoint, named, facts)

    def _load(self) -> TrainingState:
        """Put the checkpoint into the model and the optimiser; return the rest."""
        tensors, facts = load_tensors(self.checkpoint)
        try:
            self.model.load_state_dict(_with_prefix(tensors, "model."))
            parameters = dict(self.model.named_parameters())
            for key, tensor in _with_prefix(tensors, "optimiser.").items():
                moment, _, name = key.partition(".")
                is_host = moment == "step" and not self.optimiser.defaults["fused"]
                moved = tensor if is_host else tensor.to(self.device)
                self.optimiser.state[parameters[name]][moment] = moved
            known: dict[str, Any] = {**facts}
            known["recent"] = list(torch.tensor(facts["recent"], device=self.device))
            for part in ("mean", "best"):
                own = _with_prefix(tensors, f"{part}.")
                known[part] = {name: tensor.to(self.device) for name, tensor in own.items()}
            return TrainingState(**known)
        except (RuntimeError, KeyError, TypeError) as error:
            message = f"{self.checkpoint}: was written by another model; remove it"
            raise PipelineError(message) from error


def _with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write named tensors, and facts as JSON in the header, beside a checksum of the file.

    Raises:
        PipelineError: the file cannot be written.
    """
    # One key of the header alone: the library writes several in an order that changes.
    header = {"facts": json.dumps({**facts, SEAL_KEY: UNSEALED}, sort_keys=True)}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # The library's own way to files leaves others that nobody else may read, and that stay.
    write_sealed(path, save(contiguous, header))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Read what `save_tensors` wrote.

    Raises:
        PipelineError: the file is missing or damaged.
    """
    check_seal(path, "remove it, and train again")
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
        del facts[SEAL_KEY]
        return load(content), facts
    except (SafetensorError, LookupError, ValueError) as error:
        raise PipelineError(f"{path}: not a weights file of this project ({error})") from error


def save_network(model: nn.Module, scaler: NodeScaler, run_dir: Path) -> None:
    """Write a network's weights, and what its nodes are scaled by, into a run folder."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["nodes.shift"] = torch.from_numpy(scaler.shift)
    tensors["nodes.factor"] = torch.from_numpy(scaler.factor)
    save_tensors(run_dir / WEIGHTS, tensors, {"scaling": scaler.scaling})


def load_network(model: nn.Module, run_dir: Path) -> NodeScaler:
    """Put what `save_network` wrote into `model`, for ranking; return the scaler.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    path = run_dir / WEIGHTS
    tensors, facts = load_tensors(path)
    shift, factor = (tensors.pop(f"nodes.{name}").numpy() for name in ("shift", "factor"))
    try:
        model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    except RuntimeError as error:
        message = f"{path}: holds the weights of another model than its recipe's"
        raise PipelineError(message) from error
    model.eval()
    return NodeScaler(str(facts["scaling"]), shift, factor)
