"""The training loop: one task, one optimiser, checkpoints that resume exactly.

Everything random in a step is drawn from (seed, step), so the state that a checkpoint must hold is
the weights, the optimiser's moments and the step; a run that is killed and resumed takes the very
same steps as an undisturbed one.
"""

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from data.atomic import write_text
from data.errors import PipelineError
from models.jobs import Progress
from models.model_configs import TrainingConfig
from models.weights import load_tensors, save_tensors

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class StepLoss:
    """A step's loss, and which graphs it came from, for messages."""

    loss: Tensor
    graphs: str


class Task(Protocol):
    """What is trained: gives the loss of a step."""

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Return the loss on a batch drawn with `rng`."""


def prepare_torch(*, seed: int, threads: int) -> None:
    """Fix the seed, the thread count and deterministic algorithms of this process."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # By default that also fills every new tensor with NaN, a tenth of a step's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # The graphs' matrices are valid by construction; torch asks for a word on that, and warns that
    # its row-compressed matrices are new.
    torch.sparse.check_sparse_tensor_invariants.disable()
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


def fit(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    *,
    seed: int,
    run_dir: Path,
    progress: Progress | None = None,
) -> None:
    """Train `model` in place, from the last checkpoint in `run_dir` if there is one.

    Writes metrics.jsonl, one line per logged step, and a checkpoint at regular steps.

    Raises:
        PipelineError: the loss is NaN or infinite; names the step, the graphs, and the last good
            checkpoint.
    """
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    start, lines = _resume(model, optimiser, run_dir / CHECKPOINT, run_dir / METRICS)
    model.train()
    recent: list[float] = []
    for step in range(start, config.steps):
        batch = task.step_loss(model, np.random.default_rng([seed, step]))
        if not torch.isfinite(batch.loss):
            _stop_on_bad_loss(batch, step, run_dir / CHECKPOINT)
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(step, config)
        optimiser.zero_grad(set_to_none=True)
        batch.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimiser.step()
        recent.append(batch.loss.item())
        done = step + 1
        saves = done % config.checkpoint_every == 0 or done == config.steps
        if done % config.log_every == 0 or saves:
            lines.append(json.dumps({"step": done, "loss": round(float(np.mean(recent)), 6)}))
            recent.clear()
        if saves:
            write_text(run_dir / METRICS, "".join(f"{line}\n" for line in lines))
            _save(model, optimiser, done, run_dir / CHECKPOINT)
        if progress:
            progress("train", done, config.steps)
    model.eval()


def learning_rate_factor(step: int, config: TrainingConfig) -> float:
    """Return the share of the learning rate at `step`: linear warm-up, then a cosine to 0."""
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    span = max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / span)))


def _stop_on_bad_loss(batch: StepLoss, step: int, checkpoint: Path) -> None:
    kept = f"the last good state is {checkpoint}" if checkpoint.exists() else "nothing was saved"
    raise PipelineError(
        f"training: the loss is {batch.loss.item()} at step {step}, graph {batch.graphs}; {kept}; "
        "a lower learning rate may help"
    )


def _save(model: nn.Module, optimiser: torch.optim.Optimizer, step: int, path: Path) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimiser.state[parameter].items():
            tensors[f"optimiser.{moment}.{name}"] = tensor
    save_tensors(path, tensors, {"step": step})


def _resume(
    model: nn.Module, optimiser: torch.optim.Optimizer, checkpoint: Path, metrics: Path
) -> tuple[int, list[str]]:
    """Load the checkpoint if there is one; return the next step and the metric lines so far."""
    if not checkpoint.exists():
        return 0, []
    tensors, facts = load_tensors(checkpoint)
    step = int(str(facts["step"]))
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise PipelineError(f"{checkpoint}: was written by another model; remove it") from error
    for name, parameter in model.named_parameters():
        for key, tensor in tensors.items():
            moment, _, owner = key.removeprefix("optimiser.").partition(".")
            if key.startswith("optimiser.") and owner == name:
                optimiser.state[parameter][moment] = tensor
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return step, [line for line in lines if json.loads(line)["step"] <= step]
