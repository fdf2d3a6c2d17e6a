"""The training loop: one task, one optimiser, averaged weights, checkpoints that resume exactly.

All random choices of a step follow from (seed, step). A resumed run takes the same steps as an
uninterrupted run.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from common.errors import OutOfTime, PipelineError, UsageError, blame
from common.files import SEAL_KEY, UNSEALED, check_seal, read_bytes, write_sealed, write_text
from common.progress import out_of_time, progress
from features.scaling import NodeScaler
from models.config.networks import TrainingConfig
from models.registry import TrainJob
from models.run_folder import METRICS
from models.training.device import computing, precision_on, seed_generators

if TYPE_CHECKING:
    from models.training.cuda_graphs import RecordedSteps

WEIGHTS = "model.safetensors"
CHECKPOINT = "checkpoint.safetensors"
# A smaller scale of the loss leaves float16's gradients without digits. It starts at 65,536, and
# each step without finite gradients halves it.
MIN_SCALE = 2.0**-10

Tensors = dict[str, Tensor]
StepLoss = tuple[Tensor, str]  # a step's loss, (), and the names of its graphs


class TrainingTask(Protocol):
    """The source of the loss of a step.

    A task may have `prefetch(step)`, which begins to read the graphs of a step and returns soon. A
    task with early stopping has `evaluate(model) -> float`, which scores a model in evaluation mode
    on held-out data. Higher is better. A task with a `recorder`, a `RecordedSteps`, adds the
    gradients to those of the parameters, and its losses have no graph.
    """

    def step_loss(self, model: nn.Module, step: int, rng: np.random.Generator) -> StepLoss:
        """Return the loss of a batch, and the names of its graphs. Steps count from 0."""


@dataclass
class TrainingState:
    """The state of a training besides the model and the optimiser. A checkpoint has all of it."""

    step: int = 0
    recent: list[Tensor] = field(default_factory=list)  # losses, (), since the last line
    lines: list[str] = field(default_factory=list)  # content of metrics.jsonl
    mean_count: int = 0
    mean: Tensors = field(default_factory=dict)  # of each parameter over the last steps
    best_value: float | None = None  # on held-out data
    waited: int = 0  # later evaluations that were no better
    best: Tensors = field(default_factory=dict)  # parameters and buffers of `best_value`
    scale: dict[str, Any] = field(default_factory=dict)  # of float16's gradients, by GradScaler

    def losses(self) -> list[float]:
        # On a GPU, this call waits for the steps.
        return torch.stack(self.recent).cpu().tolist() if self.recent else []

    def log(self, **values: float) -> None:
        self.lines.append(json.dumps({"step": self.step, **values}))

    @torch.no_grad()
    def average(self, model: nn.Module, count: Tensor) -> None:
        """Include the parameters in the mean over the last share of the steps.

        The method is from Izmailov et al., "Averaging Weights Leads to Wider Optima and Better
        Generalization", 2018.

        Args:
            model: Network with the parameters.
            count: () number of steps in the mean, with this one.
        """
        parameters = dict(model.named_parameters())
        if not self.mean:
            self.mean = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            return
        means = list(self.mean.values())
        differences = torch._foreach_sub([parameters[name] for name in self.mean], means)
        torch._foreach_div_(differences, count)
        torch._foreach_add_(means, differences)

    @contextmanager
    def mean_weights(self, model: nn.Module) -> Iterator[None]:
        """Give a network the mean weights while the block runs, if there are any."""
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
    """Train a network in place, from the last checkpoint in its folder if there is one.

    At the end, the model has the best weights on held-out data if there are such, else the mean
    weights if they are averaged, else the last weights.

    Raises:
        UsageError: The recipe has early stopping, and the task has no evaluation.
        OutOfTime: The time is over, and steps are left for the next call.
    """
    if config.early_stop and not hasattr(task, "evaluate"):
        raise UsageError("training.early_stop: this model has no held-out evaluation; expected 0")
    training = _Training(model.to(device), task, config, job, device)
    state = training.state
    model.train()
    while not training.has_ended():
        is_late = out_of_time()
        if hasattr(task, "prefetch") and state.step + 1 < config.steps and not is_late:
            task.prefetch(state.step + 1)
        state.recent.append(training.take_step())
        state.step += 1
        value = training.held_out_value()
        has_ended = training.has_ended()
        saves = state.step % config.checkpoint_every == 0 or has_ended
        if state.step % config.log_every == 0 or saves:
            training.check()
            state.log(loss=round(float(np.mean(state.losses())), 6))
            state.recent.clear()
        if value is not None:
            state.log(held_out=round(value, 6))
        if saves or is_late:
            training.check()
            training.save()
        progress("train", config.steps if has_ended else state.step, config.steps)
        if is_late and not has_ended:
            raise OutOfTime(f"{job.run_dir}: out of time at step {state.step} of {config.steps}")
    _put(state.best or state.mean, model)
    model.eval()


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the share of the learning rate: linear warm-up, then a cosine to 0."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    span = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / span)))


@torch.no_grad()
def _put(tensors: Tensors, model: nn.Module) -> None:
    live = model.state_dict()
    for name, tensor in tensors.items():
        live[name].copy_(tensor)


class _Training:
    """A training from its last checkpoint on."""

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
        self.recorder: RecordedSteps | None = getattr(task, "recorder", None)
        # A recording reads numbers that change from the device.
        on_device = device.type == "cuda" or self.recorder is not None
        rate, decay = config.learning_rate, config.weight_decay
        self.optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(rate, device=device) if on_device else rate,
            weight_decay=decay,
            fused=on_device,
            capturable=on_device,
        )
        self.mean_count = torch.zeros((), device=device)
        self.state = self._load() if self.checkpoint.exists() else TrainingState()
        is_scaled = precision_on(device, config.precision) == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
        if self.state.scale:
            self.scaler.load_state_dict(self.state.scale)
        if self.recorder:
            self.recorder.scale = self.scaler.scale

    def has_ended(self) -> bool:
        gave_up = 0 < self.config.early_stop <= self.state.waited
        return self.state.step >= self.config.steps or gave_up

    def take_step(self) -> Tensor:
        """Update the weights, and return the batch's loss, NaN if it or a gradient is not finite.

        NaN stops a training on a CPU. A GPU is not waited for, and `check` finds the NaN.
        """
        step, state, config = self.state.step, self.state, self.config
        # The seed of dropout and other layers.
        seeds = np.random.SeedSequence([self.job.seed, step, 0])
        seed_generators(int(seeds.generate_state(1)[0]), self.device)
        with computing(self.device, config.precision):
            rng = np.random.default_rng([self.job.seed, step])
            loss, graphs = self.task.step_loss(self.model, step, rng)
        # A recorded step has its gradients already.
        if loss.requires_grad:
            self.scaler.scale(loss).backward()
        rate = config.learning_rate * learning_rate_factor(step, config)
        for group in self.optimiser.param_groups:
            is_tensor = isinstance(group["lr"], Tensor)
            group["lr"] = group["lr"].fill_(rate) if is_tensor else rate
        averages = step + 1 > config.swa_start * config.steps
        state.mean_count += averages
        self.mean_count.fill_(state.mean_count)
        update = partial(self._update, averages=averages)
        norm = self.recorder.run(averages, update) if self.recorder else update()
        loss = loss.detach()
        # With a scaler, the step was skipped and the scale lowered.
        if not self.scaler.is_enabled():
            loss = torch.where(torch.isfinite(norm), loss, torch.nan)
        if self.device.type == "cpu" and not torch.isfinite(loss):
            self._stop(f"the loss or a gradient is not finite at step {step}, graph {graphs}")
        return loss

    def _update(self, *, averages: bool) -> Tensor:
        # Update the weights and their mean, and return the norm of the gradients.
        self.scaler.unscale_(self.optimiser)
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if averages:
            self.state.average(self.model, self.mean_count)
        # A recording adds to gradients at fixed addresses.
        self.optimiser.zero_grad(set_to_none=self.recorder is None)
        return norm

    def check(self) -> None:
        losses = self.state.losses()
        if not np.isfinite(losses).all():
            step = self.state.step - len(losses) + int(np.argmin(np.isfinite(losses)))
            self._stop(f"the loss or a gradient is not finite at step {step}")
        if self.scaler.get_scale() < MIN_SCALE:
            self._stop("the gradients are not finite in float16, with any scale of the loss")

    def held_out_value(self) -> float | None:
        """Evaluate the weights, or their mean, at each interval, and store the best."""
        config, state = self.config, self.state
        is_time = state.step % config.eval_interval == 0 or state.step == config.steps
        if not (config.early_stop and is_time):
            return None
        assert hasattr(self.task, "evaluate")
        with state.mean_weights(self.model), computing(self.device, config.precision):
            self.model.eval()
            value: float = self.task.evaluate(self.model)
            if not math.isfinite(value):
                self._stop(f"the held-out value is {value} at step {state.step}")
            state.keep_if_best(value, self.model)
        self.model.train()
        return value

    def _stop(self, fault: str) -> NoReturn:
        exists = self.checkpoint.exists()
        last_state = f"the last good state is {self.checkpoint}" if exists else "nothing was saved"
        rate = "; a lower learning rate may help" if self.state.step else ""
        raise PipelineError(f"train {self.job.model}: {fault}; {last_state}{rate}")

    def save(self) -> None:
        state = self.state
        write_text(self.job.run_dir / METRICS, "".join(f"{line}\n" for line in state.lines))
        facts = {**vars(state), "recent": state.losses(), "scale": self.scaler.state_dict()}
        parts = {"model": self.model.state_dict()}
        parts |= {part: facts.pop(part) for part in ("mean", "best")}
        for name, parameter in self.model.named_parameters():
            for moment, tensor in self.optimiser.state[parameter].items():
                parts.setdefault(f"optimiser.{moment}", {})[name] = tensor
        flat = {f"{part}.{name}": t for part, group in parts.items() for name, t in group.items()}
        save_tensors(self.checkpoint, flat, facts)

    def _load(self) -> TrainingState:
        tensors, facts = load_tensors(self.checkpoint)
        with blame(self.checkpoint, "a checkpoint of this model; remove it"):
            self.model.load_state_dict(_with_prefix(tensors, "model."))
            parameters = dict(self.model.named_parameters())
            for key, tensor in _with_prefix(tensors, "optimiser.").items():
                moment, _, name = key.partition(".")
                is_host = moment == "step" and not self.optimiser.defaults["fused"]
                on_device = tensor if is_host else tensor.to(self.device)
                self.optimiser.state[parameters[name]][moment] = on_device
            fields: dict[str, Any] = {**facts}
            fields["recent"] = list(torch.tensor(facts["recent"], device=self.device))
            for part in ("mean", "best"):
                group = _with_prefix(tensors, f"{part}.")
                fields[part] = {name: tensor.to(self.device) for name, tensor in group.items()}
            return TrainingState(**fields)


def _with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write named tensors, with facts as JSON and a checksum in the header."""
    # The header has one key, because the library writes several in a changing order.
    header = {"facts": json.dumps({**facts, SEAL_KEY: UNSEALED}, sort_keys=True)}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # `save_file` of the library leaves temporary files that only their owner may read.
    write_sealed(path, save(contiguous, header))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Read the tensors and facts of `save_tensors`."""
    check_seal(path, "remove it, and train again")
    content = read_bytes(path)
    length = int.from_bytes(content[:8], "little")
    try:
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
        del facts[SEAL_KEY]
        return load(content), facts
    except (SafetensorError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise PipelineError(f"{path}: not a weights file of this project ({error})") from error


def save_network(model: nn.Module, scaler: NodeScaler, run_dir: Path) -> None:
    """Write a network's weights and its scaler into a run folder."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["nodes.shift"] = torch.from_numpy(scaler.shift)
    tensors["nodes.factor"] = torch.from_numpy(scaler.factor)
    save_tensors(run_dir / WEIGHTS, tensors, {"scaling": scaler.scaling})


def load_network(model: nn.Module, run_dir: Path) -> NodeScaler:
    """Load the weights of `save_network` into a network, for ranking."""
    path = run_dir / WEIGHTS
    tensors, facts = load_tensors(path)
    shift, factor = (tensors.pop(f"nodes.{name}").numpy() for name in ("shift", "factor"))
    with blame(path, "the weights of the model of its recipe"):
        model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    model.eval()
    return NodeScaler(str(facts["scaling"]), shift, factor)
