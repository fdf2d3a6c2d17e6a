"""Train the tile GNNs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.metrics import TILE_PICKS, tile_score
from data.read import read_tile
from features.scaling import fit_node_scaler
from models.graph_task import JudgedGraphs, torch_for
from models.tile.inputs import TileInputs, join
from models.tile.network import TileNetwork
from models.training.dataset import LRUCache
from models.training.folds import HeldOut, hold_out
from models.training.jobs import TrainJob
from models.training.loop import StepLoss, fit
from models.training.losses import TILE_LOSSES
from models.training.weights import save_network


@dataclass(frozen=True)
class TileTask(JudgedGraphs[TileInputs]):
    """Ranks a sample of configs of several kernels per step."""

    @property
    def n_per_step(self) -> int:
        return int(self.config.kernels_per_step)

    def step_loss(self, model: Any, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `kernels_per_step` random kernels, `configs_per_kernel` of each."""
        chosen = self.chosen(rng)
        kernels = [self.inputs(self.files[i]) for i in chosen]
        learned = (self.held_out.configs(len(kernel.runtime), judged=False) for kernel in kernels)
        rows = [rng.permutation(part)[: self.config.configs_per_kernel] for part in learned]
        batch = join(kernels, rows, model.config_scaler)
        losses = TILE_LOSSES[self.config.loss](model(batch), batch.runtime)  # (g,)
        return losses.mean(), self.named(chosen)

    def judged(self, model: Any, inputs: TileInputs) -> Iterator[float]:
        """Yield a kernel's tile score, unless it has so few configs that any order scores 1."""
        rows = self.held_out.configs(len(inputs.runtime), judged=True)
        if len(rows) > TILE_PICKS:
            scores = model.score_all(inputs.only(rows))
            value = tile_score(np.argsort(scores, kind="stable"), inputs.runtime[rows])
            yield value if np.isfinite(scores).all() else math.nan


def train(job: TrainJob, network: type[TileNetwork]) -> None:
    """Train the tile GNN `job.model`; write its weights with all it needs to read kernels.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    with torch_for(job) as (config, device):
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
