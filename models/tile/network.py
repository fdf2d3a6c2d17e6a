"""What a tile network is, how it reads nodes, and how it is trained.

One's own derives from TileNetwork, see docs/guides/add_a_model.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.metrics import TILE_PICKS, ranking_score
from data.cache import LRUCache
from data.families import HeldOut, hold_out
from data.graph_store.stored_graph import read_tile
from data.graphs.graph import N_NODE_FEATURES, TileGraph
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR
from features.scaling import NodeScaler, fit_node_scaler
from models.config.networks import TileGnnConfig
from models.config.recipe import FeaturesConfig
from models.graph_task import JudgedGraphs, loss_of, torch_for
from models.layout.network import N_OPCODES
from models.registry import TrainJob
from models.tile.inputs import (
    ConfigScaler,
    TileBatch,
    TileInputs,
    join,
    n_config_columns,
    tile_inputs,
)
from models.training.loop import StepLoss, fit, save_network
from models.training.losses import TILE_LOSSES, Loss

LAYOUT_WIDTH = 4


class TileNetwork(nn.Module, ABC):
    """Scores the configs of many kernels; lower = faster. A subclass has a `forward`.

    Attributes:
        losses: by the name that `config.loss` has; one's own may have more.
        node_width: w, of what `embed_nodes` gives.
        n_columns: f, of a batch's `config_feat`.
    """

    Config: ClassVar[type[TileGnnConfig]] = TileGnnConfig
    losses: ClassVar[Mapping[str, Loss]] = TILE_LOSSES

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
        """Score all configs of all kernels of the batch; (g, r) float32, lower = faster."""

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


@dataclass(frozen=True)
class TileTask(JudgedGraphs[TileInputs]):
    """Ranks a sample of configs of several kernels per step."""

    @property
    def n_per_step(self) -> int:
        return int(self.config.kernels_per_step)

    def step_loss(self, model: Any, rng: np.random.Generator) -> StepLoss:
        chosen = self.chosen(rng)
        kernels = [self.inputs(self.files[i]) for i in chosen]
        learned = (self.held_out.configs(len(kernel.runtime), judged=False) for kernel in kernels)
        rows = [rng.permutation(part)[: self.config.configs_per_kernel] for part in learned]
        batch = join(kernels, rows, model.config_scaler)
        return loss_of(model, model(batch), batch.runtime).mean(), self.named(chosen)

    def judged(self, model: Any, inputs: TileInputs) -> Iterator[float]:
        """Yield a kernel's tile score, unless it has so few configs that any order scores 1."""
        rows = self.held_out.configs(len(inputs.runtime), judged=True)
        if len(rows) > TILE_PICKS:
            scores = model.score_all(inputs.only(rows))
            yield ranking_score("tile", scores, inputs.runtime[rows])


def train(job: TrainJob, network: type[TileNetwork]) -> None:
    """Train the tile GNN `job.model`; write its weights with all it needs to read kernels."""
    with torch_for(job, network) as (config, device):
        files = tuple(job.files)
        held_out = hold_out(files, job.seed) if config.training.early_stop else HeldOut(files)
        learned = held_out.learned
        node_feats = (read_tile(file).node_feat for file in learned)
        nodes = fit_node_scaler(node_feats, scaling=job.recipe.features.scaling)
        model = network(config)
        read = model.reader(job.recipe.features, nodes)
        inputs = LRUCache(lambda file: read(read_tile(file)))
        model.config_scaler.fit(inputs(file).config_columns() for file in learned)
        task = TileTask(learned, inputs, config, held_out)
        fit(model, task, config.training, job, device)
        save_network(model, nodes, job.run_dir)
