"""Weights and training state as safetensors: no pickle, whole or absent."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from common.checksums import SEAL_KEY, UNSEALED, check_seal, write_sealed
from common.errors import PipelineError
from data.graphs.graph import N_NODE_FEATURES
from features.scaling import SCALINGS, NodeScaler

WEIGHTS = "model.safetensors"
NOT_OURS = (SafetensorError, LookupError, ValueError, AttributeError, TypeError, RecursionError)


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
        PipelineError: the file is missing, damaged, or not one of ours.
    """
    check_seal(path, "remove it, and train again")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            facts.pop(SEAL_KEY, None)
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except OSError as error:
        raise PipelineError(f"{path}: weights cannot be read: {error}") from error
    except NOT_OURS as error:
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
    names, scaling = ("nodes.shift", "nodes.factor"), facts.get("scaling")
    shift, factor = (tensors.pop(name, torch.empty(0)).numpy() for name in names)
    if scaling not in SCALINGS or not shift.shape == factor.shape == (N_NODE_FEATURES,):
        raise PipelineError(f"{path}: does not say how nodes are scaled; train again")
    try:
        model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items()})
    except RuntimeError as error:
        message = f"{path}: holds the weights of another model than its recipe's"
        raise PipelineError(message) from error
    model.eval()
    return NodeScaler(str(scaling), shift, factor)
