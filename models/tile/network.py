"""What a tile network is, and how it reads nodes; one's own derives from it, see docs/models.md."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import N_NODE_FEATURES, TileGraph
from data.packing import N_SYMBOLS, VALUES_PER_TENSOR
from features.scaling import NodeScaler
from models.config.networks import TileGnnConfig
from models.config.recipe import FeaturesConfig
from models.layout.network import N_OPCODES
from models.tile.inputs import (
    ConfigScaler,
    TileBatch,
    TileInputs,
    join,
    n_config_columns,
    tile_inputs,
)

LAYOUT_WIDTH = 4


class TileNetwork(nn.Module, ABC):
    """Scores the configs of many kernels; lower = faster. A subclass has a `forward`.

    Attributes:
        node_width: w, of what `embed_nodes` gives.
        n_columns: f, of a batch's `config_feat`.
    """

    Config: ClassVar[type[TileGnnConfig]] = TileGnnConfig

    def __init__(self, config: TileGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.opcode = nn.Embedding(N_OPCODES, config.opcode_width)
        self.layout = nn.Embedding(N_SYMBOLS, LAYOUT_WIDTH)
        self.n_columns = n_config_columns(config)
        self.config_scaler = ConfigScaler(self.n_columns)
        self.node_width = N_NODE_FEATURES + config.opcode_width + VALUES_PER_TENSOR * LAYOUT_WIDTH

    def reader(
        self, features: FeaturesConfig, scaler: NodeScaler
    ) -> Callable[[TileGraph], TileInputs]:
        """Return what makes of a kernel what batches are joined from."""
        return partial(tile_inputs, config=self.config, nodes=scaler)

    def embed_nodes(self, batch: TileBatch) -> Tensor:
        """Return (n, w) float32 of all kernels' nodes: numbers, opcode and layout side by side."""
        parts = [batch.node_feat, self.opcode(batch.opcode), self.layout(batch.layout).flatten(1)]
        return torch.cat(parts, dim=1)

    @staticmethod
    def scores_of(head: nn.Module, x: Tensor) -> Tensor:
        """Map (g, r, h) to scores (g, r) by `head`, in float32: half precision would make ties."""
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = head(x.float()).squeeze(-1)
        return scores

    @abstractmethod
    def forward(self, batch: TileBatch) -> Tensor:
        """Score all configs of all kernels of the batch; (g, r) float32, lower = faster.

        Scores are compared within a kernel alone.
        """

    @torch.inference_mode()
    def score_all(self, inputs: TileInputs) -> NDArray[np.float32]:
        """Score every config of one kernel, as many at a time as `chunk_for` says; (c,) float32."""
        n_configs, step = len(inputs.runtime), self.chunk_for(inputs)
        chunks = np.split(np.arange(n_configs), range(step, n_configs, step))
        batches = (join([inputs], [rows], self.config_scaler) for rows in chunks)
        return torch.cat([self(batch)[0] for batch in batches]).float().cpu().numpy()

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return how many configs of a kernel to score at once: all, unless they are too large."""
        return max(1, len(inputs.runtime))
