"""The base class and the training of tile networks.

A custom network derives from TileNetwork. See docs/guides/add_a_model.md.
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
from data.graph_store.stored_graph import read_tile
from data.graphs.graph import N_NODE_FEATURES, TileGraph
from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR
from features.padding import node_features
from features.scaling import NodeScaler, fit_node_scaler
from features.statistics.configs import statistics_names
from models.config.networks import TileGnnConfig
from models.config.recipe import FeaturesConfig
from models.graph_task import HeldOutGraphs, held_out_graphs, loss_of, torch_for
from models.layout.network import N_OPCODES
from models.registry import TrainJob
from models.tile.inputs import ConfigScaler, TileBatch, TileInputs, join, tile_inputs
from models.training.loop import StepLoss, fit, save_network
from models.training.losses import TILE_LOSSES, Loss

LAYOUT_WIDTH = 4


class TileNetwork(nn.Module, ABC):
    """Score the configs of many kernels. A subclass has a `forward`.

    A lower score means a faster config.

    Attributes:
        losses: Losses by the name in `config.loss`. A custom network may have more.
        node_width: Width w of the result of `embed_nodes`.
        n_columns: Number f of columns of a batch's `config_feat`.
    """

    Config: ClassVar[type[TileGnnConfig]] = TileGnnConfig
    losses: ClassVar[Mapping[str, Loss]] = TILE_LOSSES

    def __init__(self, config: TileGnnConfig) -> None:
        super().__init__()
        self.config = config
        self.opcode = nn.Embedding(N_OPCODES, config.opcode_width)
        self.layout = nn.Embedding(N_SYMBOLS, LAYOUT_WIDTH)
        n_statistics = len(statistics_names("tile", config.statistics))
        self.n_columns = n_statistics * (1 + config.relative_configs)
        self.config_scaler = ConfigScaler(self.n_columns)
        self.node_width = N_NODE_FEATURES + config.opcode_width + VALUES_PER_TENSOR * LAYOUT_WIDTH

    def reader(
        self, features: FeaturesConfig, scaler: NodeScaler
    ) -> Callable[[TileGraph], TileInputs]:
        """Return the function that computes the inputs of a kernel, by the recipe's `features`."""
        return partial(tile_inputs, config=self.config, nodes=scaler, padding=features.padding)

    def embed_nodes(self, batch: TileBatch) -> Tensor:
        """Join the numbers, opcode and layout of all kernels' nodes, (n, w) float32."""
        parts = [batch.node_feat, self.opcode(batch.opcode), self.layout(batch.layout).flatten(1)]
        return torch.cat(parts, dim=1)

    @staticmethod
    def scores_of(head: nn.Module, x: Tensor) -> Tensor:
        """Apply the head in float32, because scores in half precision have ties.

        Args:
            head: Module from h channels to 1.
            x: (g, r, h) configs.

        Returns:
            (g, r) float32 scores.
        """
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = head(x.float()).squeeze(-1)
        return scores

    @abstractmethod
    def forward(self, batch: TileBatch) -> Tensor:
        """Score all configs of a batch, (g, r) float32. A lower score means a faster config."""

    @torch.inference_mode()
    def score_all(self, inputs: TileInputs) -> NDArray[np.float32]:
        """Score every config of one kernel, (c,) float32, in chunks of `chunk_for` configs."""
        n_configs, step = len(inputs.runtime), self.chunk_for(inputs)
        chunks = np.split(np.arange(n_configs), range(step, n_configs, step))
        batches = (join([inputs], [rows], self.config_scaler) for rows in chunks)
        return torch.cat([self(batch)[0] for batch in batches]).float().cpu().numpy()

    def chunk_for(self, inputs: TileInputs) -> int:
        """Return the number of configs to score at once. The default is all configs."""
        return max(1, len(inputs.runtime))


@dataclass(frozen=True)
class TileTask(HeldOutGraphs[TileInputs]):
    """Train on a sample of configs of several kernels per step."""

    @property
    def n_per_step(self) -> int:
        return int(self.config.kernels_per_step)

    def step_loss(self, model: Any, step: int, rng: np.random.Generator) -> StepLoss:
        indices = self.graphs_of(step)
        kernels = [self.inputs(self.files[index]) for index in indices]
        sizes = (len(kernel.runtime) for kernel in kernels)
        train_rows = (self.held_out.configs(size, judged=False) for size in sizes)
        rows = [rng.permutation(part)[: self.config.configs_per_kernel] for part in train_rows]
        batch = join(kernels, rows, model.config_scaler)
        return loss_of(model, model(batch), batch.runtime).mean(), self.names_of(indices)

    def judged(self, model: Any, inputs: TileInputs) -> Iterator[float]:
        # With few configs, any order has the tile score 1.
        rows = self.held_out.configs(len(inputs.runtime), judged=True)
        if len(rows) > TILE_PICKS:
            scores = model.score_all(inputs.only(rows))
            yield ranking_score("tile", scores, inputs.runtime[rows])


def train_tile_network(job: TrainJob, network: type[TileNetwork]) -> None:
    """Train a tile network, and write its weights and its scalers."""
    with torch_for(job, network) as (config, device):
        held_out, features = held_out_graphs(job, config.training), job.recipe.features
        files = held_out.learned
        node_feats = (node_features(read_tile(file), features.padding) for file in files)
        nodes = fit_node_scaler(node_feats, scaling=features.scaling)
        model = network(config)
        read = model.reader(features, nodes)
        inputs = LRUCache(lambda file: read(read_tile(file)))
        model.config_scaler.fit(inputs(file).config_columns() for file in files)
        task = TileTask(files, inputs, config, job.seed, held_out)
        fit(model, task, config.training, job, device)
        save_network(model, nodes, job.run_dir)
