"""Train and load the tile GNNs."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import PipelineError
from common.metrics import TILE_PICKS, tile_score
from data.graphs.graph import Graph, TileGraph
from data.graphs.node_layouts import Padding
from data.read import read_tile
from data.tree import GraphFile
from features.scaling import NodeScaler, fit_node_scaler
from models.config.networks import TileGnnConfig
from models.config.recipe import Recipe
from models.tile.inputs import (
    ConfigScaler,
    TileInputs,
    config_columns,
    fit_config_scaler,
    join,
    tile_inputs,
)
from models.tile.network import TileNetwork
from models.training.dataset import LRUCache
from models.training.device import device_of, ranking_device, torch_prepared, training_device
from models.training.folds import HeldOut, hold_out
from models.training.jobs import TrainJob
from models.training.loop import StepLoss, fit
from models.training.losses import TILE_LOSSES
from models.training.weights import WEIGHTS, load_tensors, load_weights, save_tensors


@dataclass(frozen=True)
class TileTask:
    """Ranks a sample of configs of several kernels per step.

    Attributes:
        files: train kernels that a ranker can learn from.
        inputs: makes or finds the tensors of a kernel.
        config: its configuration.
        held_out: what of the kernels is not learned from; None = nothing.
        rank, n_ranks: this process's number among those that share a step's kernels.
    """

    files: tuple[GraphFile, ...]
    inputs: LRUCache[TileInputs]
    config: TileGnnConfig
    held_out: HeldOut | None = None
    rank: int = 0
    n_ranks: int = 1

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `kernels_per_step` random kernels, `configs_per_kernel` of each.

        All processes draw the same kernels and configs; each computes every n_ranks-th kernel, and
        its part of the mean.
        """
        chosen = self._chosen(rng)
        kernels = [self.inputs(file) for file in chosen]
        rows = [self._sample(kernel, rng) for kernel in kernels]
        own = slice(self.rank, None, self.n_ranks)
        share = len(kernels[own]) / len(kernels)
        kernels, rows, chosen = kernels[own], rows[own], chosen[own]
        if not kernels:
            return StepLoss(torch.zeros(()), "")
        scores = model(join(kernels, rows)).split([len(part) for part in rows])
        rank_loss = TILE_LOSSES[self.config.loss]
        losses = [
            rank_loss(part, kernel.runtime[row])
            for part, kernel, row in zip(scores, kernels, rows, strict=True)
        ]
        loss = torch.stack(losses).mean() * share
        return StepLoss(loss, ", ".join(file.name for file in chosen))

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the kernels of the step that `rng` draws."""
        self.inputs.prefetch(self._chosen(rng))

    def _chosen(self, rng: np.random.Generator) -> list[GraphFile]:
        order = rng.permutation(len(self.files))
        return [self.files[i] for i in order[: self.config.kernels_per_step]]

    def evaluate(self, model: nn.Module) -> float:
        """Mean tile score over the held-out kernels."""
        assert self.held_out is not None and isinstance(model, TileNetwork)
        values = []
        for file in self.held_out.judged:
            kernel = self.inputs(file)
            positions = self.held_out.configs(len(kernel.runtime), judged=True)
            rows = torch.from_numpy(positions).to(kernel.runtime.device)
            if len(rows) <= TILE_PICKS:
                continue  # any order would score 1
            scores = model.score_all(kernel.only(rows))
            if not np.isfinite(scores).all():
                return math.nan
            ranking = np.argsort(scores, kind="stable")
            values.append(tile_score(ranking, kernel.runtime[rows].cpu().numpy()))
        if not values:
            raise PipelineError(
                "training.early_stop: no held-out kernel has more than five configs to judge by; "
                "set it to 0, or add train kernels"
            )
        return float(np.mean(values))

    def _sample(self, kernel: TileInputs, rng: np.random.Generator) -> Tensor:
        n_configs = len(kernel.runtime)
        learned = self.held_out.configs(n_configs, judged=False) if self.held_out else n_configs
        drawn = rng.permutation(learned)[: self.config.configs_per_kernel]
        return torch.from_numpy(drawn).to(kernel.runtime.device)


def train(job: TrainJob, network: type[TileNetwork]) -> None:
    """Train the tile GNN `job.model`; write its weights with all it needs to read kernels.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe, config = job.recipe, tile_config(job.recipe, job.model)
    device = training_device(recipe.accelerator, processes=job.n_ranks)
    with torch_prepared(seed=job.seed, threads=recipe.threads, device=device):
        _train(job, network, config, device)


def _train(
    job: TrainJob, network: type[TileNetwork], config: TileGnnConfig, device: torch.device
) -> None:
    recipe = job.recipe
    early_stop = config.training.early_stop > 0
    held_out = hold_out(job.files, job.seed) if early_stop else None
    learned = held_out.learned if held_out else tuple(job.files)
    node_feats = (read_tile(file).node_feat for file in learned)
    nodes = fit_node_scaler(node_feats, scaling=recipe.features.scaling)
    columns = (config_columns(read_tile(file), config) for file in learned)
    configs = fit_config_scaler(columns)

    inputs_of = partial(
        tile_inputs, config=config, nodes=nodes, configs=configs, padding=recipe.features.padding
    )

    def make(file: GraphFile) -> TileInputs:
        return inputs_of(read_tile(file)).to(device)

    model = network(config)
    task = TileTask(learned, LRUCache(make), config, held_out, job.rank, job.n_ranks)
    fit(model, task, config.training, job, device)
    if job.rank > 0:
        return
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {"configs.shift": configs.shift, "configs.factor": configs.factor}
    tensors["nodes.shift"] = torch.from_numpy(nodes.shift)
    tensors["nodes.factor"] = torch.from_numpy(nodes.factor)
    save_tensors(job.run_dir / WEIGHTS, tensors, {"scaling": nodes.scaling})


@dataclass(frozen=True)
class TileRanker:
    """A trained tile GNN."""

    model: TileNetwork
    nodes: NodeScaler
    configs: ConfigScaler
    padding: Padding
    threads: int

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a kernel; (c,) float32, lower = faster."""
        assert isinstance(graph, TileGraph)
        device, config = device_of(self.model), self.model.config
        with torch_prepared(threads=self.threads, device=device):
            inputs = tile_inputs(
                graph, config, nodes=self.nodes, configs=self.configs, padding=self.padding
            )
            return self.model.score_all(inputs.to(device))


def load(name: str, run_dir: Path, recipe: Recipe, network: type[TileNetwork]) -> TileRanker:
    """Load what `train` wrote for the model `name`.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    device = ranking_device(recipe.accelerator)
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    configs = ConfigScaler(tensors.pop("configs.shift"), tensors.pop("configs.factor"))
    shift, factor = tensors.pop("nodes.shift").numpy(), tensors.pop("nodes.factor").numpy()
    with torch_prepared(threads=recipe.threads, device=device):
        model = network(tile_config(recipe, name))
        load_weights(model, tensors, run_dir / WEIGHTS)
    nodes = NodeScaler(str(facts["scaling"]), shift, factor)
    padding, threads = recipe.features.padding, recipe.threads
    return TileRanker(model.eval().to(device), nodes, configs, padding, threads)


def tile_config(recipe: Recipe, name: str) -> TileGnnConfig:
    """Return the table of a tile network in a recipe."""
    config = getattr(recipe, name)
    assert isinstance(config, TileGnnConfig)
    return config
