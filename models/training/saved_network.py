"""A trained layout network on disk: its weights, and how node features are scaled for it."""

from pathlib import Path

import torch
from torch import nn

from features.scaling import NodeScaler
from models.training.weights import load_tensors, load_weights, save_tensors

WEIGHTS = "model.safetensors"


def save_network(model: nn.Module, scaler: NodeScaler, run_dir: Path) -> None:
    """Write model.safetensors into a run folder.

    Raises:
        PipelineError: the file cannot be written.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["nodes.shift"] = torch.from_numpy(scaler.shift)
    tensors["nodes.factor"] = torch.from_numpy(scaler.factor)
    save_tensors(run_dir / WEIGHTS, tensors, {"scaling": scaler.scaling})


def load_network(model: nn.Module, run_dir: Path) -> NodeScaler:
    """Put what `save_network` wrote into `model`, for ranking; return the scaler.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    scaler = NodeScaler(
        str(facts["scaling"]),
        tensors.pop("nodes.shift").numpy(),
        tensors.pop("nodes.factor").numpy(),
    )
    load_weights(model, tensors, run_dir / WEIGHTS)
    model.eval()
    return scaler
