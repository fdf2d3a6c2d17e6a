"""The state of a training, written whole, from which a killed run goes on as if undisturbed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.atomic import write_text
from common.checksums import checksum_of
from common.errors import PipelineError
from models.training.device import device_of
from models.training.weight_averaging import BestWeights, WeightMean
from models.training.weights import load_tensors, save_tensors

CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"
UNKNOWN = "unknown"  # no file's checksum


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
    metrics = _text(state.lines)
    write_text(run_dir / METRICS, metrics)
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
        "metrics": checksum_of(metrics.encode()),
    }
    save_tensors(run_dir / CHECKPOINT, tensors, facts)


def load_state(model: nn.Module, optimiser: torch.optim.Optimizer, run_dir: Path) -> TrainingState:
    """Put the checkpoint, if there is one, into the model and the optimiser; return the rest.

    All of it goes to the model's device, wherever it was written, but for the optimiser's count of
    steps, which AdamW keeps on the host.

    Raises:
        PipelineError: the checkpoint or metrics.jsonl is damaged, or another model's.
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
    return TrainingState(
        step=step,
        recent=known.get("recent", []),
        lines=_lines_until(step, metrics, known.get("metrics")),
        mean=WeightMean(known.get("mean_count", 0), mean),
        best=BestWeights(known.get("best_value"), known.get("best_waited", 0), best),
    )


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _lines_until(step: int, path: Path, checksum: str | None) -> list[str]:
    """Return the metrics up to `step`; those after it come from steps that are taken again.

    Args:
        checksum: of these lines as the checkpoint knows them; None of an older one.

    Raises:
        PipelineError: they are not what was written.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= step]
    except (OSError, ValueError, KeyError, TypeError):
        kept = []
        checksum = checksum or UNKNOWN
    if checksum not in (None, checksum_of(_text(kept).encode())):
        raise PipelineError(
            f"{path}: damaged: it is not as it was written; remove {path.parent}, and the model is "
            "trained again"
        )
    return kept


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
