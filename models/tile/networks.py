"""The tile GNNs by name: their configuration, how they are built, and how they rank a kernel.

A network is an nn.Module with
    forward(batch: TileBatch) -> (c,) float32: scores of all configs of all kernels of the batch;
        lower = faster, to be compared within a kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.config.networks import TileGnnConfig
from models.config.recipe import Recipe
from models.tile.early_fusion_sage import EarlyFusionSage
from models.tile.inputs import TileInputs, join
from models.tile.late_fusion_sage import LateFusionSage


@dataclass(frozen=True)
class TileNet:
    """One network.

    Attributes:
        config_of: where its configuration stands in a recipe.
        build: makes it from that configuration.
        score_all: scores every config of a kernel; (c,) float32.
    """

    config_of: Callable[[Recipe], TileGnnConfig]
    build: Callable[[Any], Any]
    score_all: Callable[[Any, TileInputs], NDArray[np.float32]]


@torch.inference_mode()
def score_at_once(model: nn.Module, inputs: TileInputs) -> NDArray[np.float32]:
    """Score all configs of one kernel together; (c,) float32."""
    scores: NDArray[np.float32] = model(join([inputs], [inputs.every_config()])).cpu().numpy()
    return scores


@torch.inference_mode()
def score_in_chunks(model: EarlyFusionSage, inputs: TileInputs) -> NDArray[np.float32]:
    """Score the configs of one kernel, chunk by chunk; (c,) float32, whatever the chunk.

    A pair of a node and a config has `hidden` numbers: a chunk takes as many configs as keep all
    its pairs within `inference_tensor_mib`.
    """
    pair_bytes = 4 * model.config.hidden * len(inputs.opcode)
    chunk = max(1, (model.config.inference_tensor_mib << 20) // pair_bytes)
    parts = [model(join([inputs], [rows])) for rows in inputs.every_config().split(chunk)]
    return torch.cat(parts).cpu().numpy()


TILE_NETS: dict[str, TileNet] = {
    "late_fusion_sage": TileNet(
        lambda recipe: recipe.late_fusion_sage, LateFusionSage, score_at_once
    ),
    "early_fusion_sage": TileNet(
        lambda recipe: recipe.early_fusion_sage, EarlyFusionSage, score_in_chunks
    ),
}
