"""The state of a training, written whole, from which a killed run goes on as if undisturbed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from data.atomic import write_text
from data.errors import PipelineError
from models.device import device_of
from models.kept_weights import BestWeights, WeightMean
from models.weights import load_tensors, save_tensors

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"


@dataclass
class TrainingState:
    """What a training holds besides the model and the optimiser.

    Attributes:
        step: how many steps are done.
        recent: losses since the last line of metrics.
        lines: metrics.jsonl so far.
        mean: the weights' mean over the last steps.
        best: the weights that ranked held-out data best.
    """

    step: int = 0
    recent: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    mean: WeightMean = field(default_factory=WeightMean)
    best: BestWeights = field(default_factory=BestWeights)

    def log(self, **values: float) -> None:
        """Add a line of metrics for the steps done so far."""
        self.lines.append(json.dumps({"step": self.step, **values}))


def save_state(
    state: TrainingState, model: nn.Module, optimiser: torch.optim.Optimizer, run_dir: Path
) -> None:
    """Write metrics.jsonl, then the checkpoint."""
    write_text(run_dir / METRICS, "".join(f"{line}\n" for line in state.lines))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimiser.state[parameter].items():
            tensors[f"optimiser.{moment}.{name}"] = tensor
    tensors |= {f"mean.{name}": tensor for name, tensor in state.mean.tensors.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in state.best.tensors.items()}
    facts = {
        "step": state.step,
        "recent": state.recent,
        "mean_count": state.mean.count,
        "best_value": state.best.value,
        "best_waited": state.best.waited,
    }
    save_tensors(run_dir / CHECKPOINT, tensors, facts)


def load_state(model: nn.Module, optimiser: torch.optim.Optimizer, run_dir: Path) -> TrainingState:
    """Put the checkpoint, if there is one, into the model and the optimiser; return the rest.

    All of it goes to the model's device, wherever it was written, but for the optimiser's count of
    steps, which AdamW keeps on the host.

    Raises:
        PipelineError: the checkpoint is damaged, or another model's.
    """
    path, metrics = run_dir / CHECKPOINT, run_dir / METRICS
    if not path.exists():
        return TrainingState()
    tensors, facts = load_tensors(path)
    try:
        model.load_state_dict(_with_prefix(tensors, "model."))
    except RuntimeError as error:
        raise PipelineError(f"{path}: was written by another model; remove it") from error
    parameters = dict(model.named_parameters())
    for key, tensor in _with_prefix(tensors, "optimiser.").items():
        moment, _, name = key.partition(".")
        parameter = parameters[name]
        moved = tensor if moment == "step" else tensor.to(parameter.device)
        optimiser.state[parameter][moment] = moved
    known: dict[str, Any] = dict(facts)
    device = device_of(model)
    mean, best = (
        {name: tensor.to(device) for name, tensor in _with_prefix(tensors, prefix).items()}
        for prefix in ("mean.", "best.")
    )
    step = int(known["step"])
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return TrainingState(
        step=step,
        recent=known.get("recent", []),
        lines=[line for line in lines if json.loads(line)["step"] <= step],
        mean=WeightMean(known.get("mean_count", 0), mean),
        best=BestWeights(known.get("best_value"), known.get("best_waited", 0), best),
    )


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
