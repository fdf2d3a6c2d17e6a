"""Train and load the tile GNN."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graph import Graph, TileGraph
from data.read import read_tile
from data.tree import GraphFile
from features.node_features import NodeScaler, fit_node_scaler
from features.tile_statistics import tile_statistics
from models.engine import StepLoss, fit, prepare_torch
from models.jobs import TrainJob
from models.late_fusion_sage import LateFusionSage, score_kernel
from models.losses import LOSSES
from models.model_configs import LateFusionSageConfig
from models.recipe import Recipe
from models.tile_inputs import ConfigScaler, TileInputs, fit_config_scaler, join, tile_inputs
from models.train_set import RecentlyUsed
from models.weights import load_tensors, load_weights, save_tensors

WEIGHTS = "model.safetensors"
CACHE_BYTES = 2 << 30


@dataclass(frozen=True)
class TileTask:
    """Ranks a sample of configs of several kernels per step."""

    files: tuple[GraphFile, ...]
    inputs: RecentlyUsed[TileInputs]
    config: LateFusionSageConfig

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `kernels_per_step` random kernels, `configs_per_kernel` of each."""
        chosen = [self.files[i] for i in rng.permutation(len(self.files))]
        chosen = chosen[: self.config.kernels_per_step]
        kernels = [self.inputs(file) for file in chosen]
        rows = [self._sample(kernel, rng) for kernel in kernels]
        scores = model(join(kernels, rows)).split([len(part) for part in rows])
        loss = LOSSES[self.config.loss]
        losses = [
            loss(part, kernel.runtime[row])
            for part, kernel, row in zip(scores, kernels, rows, strict=True)
        ]
        return StepLoss(torch.stack(losses).mean(), ", ".join(file.name for file in chosen))

    def _sample(self, kernel: TileInputs, rng: np.random.Generator) -> Tensor:
        drawn = rng.permutation(len(kernel.runtime))[: self.config.configs_per_kernel]
        return torch.from_numpy(drawn)


def train_tile(job: TrainJob) -> None:
    """Train the tile GNN and write its weights with all it needs to read kernels.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe, config = job.recipe, job.recipe.late_fusion_sage
    prepare_torch(seed=job.seed, threads=recipe.threads)
    node_feats = (read_tile(file).node_feat for file in job.files)
    nodes = fit_node_scaler(node_feats, scaling=recipe.features.scaling)
    configs = fit_config_scaler(tile_statistics(read_tile(file)) for file in job.files)

    def make(file: GraphFile) -> TileInputs:
        return tile_inputs(read_tile(file), nodes=nodes, configs=configs)

    model = LateFusionSage(config)
    cache = RecentlyUsed(make, _bytes, max_bytes=CACHE_BYTES)
    task = TileTask(tuple(job.files), cache, config)
    fit(model, task, config.training, seed=job.seed, run_dir=job.run_dir, progress=job.progress)
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, scaler in (("nodes", nodes), ("configs", configs)):
        tensors[f"{name}.shift"] = torch.from_numpy(scaler.shift)
        tensors[f"{name}.factor"] = torch.from_numpy(scaler.factor)
    save_tensors(job.run_dir / WEIGHTS, tensors, {"scaling": nodes.scaling})


def _bytes(inputs: TileInputs) -> int:
    return inputs.node_feat.nbytes + inputs.config_feat.nbytes + inputs.runtime.nbytes


@dataclass(frozen=True)
class TileRanker:
    """A trained tile GNN."""

    model: LateFusionSage
    nodes: NodeScaler
    configs: ConfigScaler

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a kernel; (c,) float32, lower = faster."""
        assert isinstance(graph, TileGraph)
        return score_kernel(self.model, tile_inputs(graph, nodes=self.nodes, configs=self.configs))


def load_tile(run_dir: Path, recipe: Recipe) -> TileRanker:
    """Load what `train_tile` wrote.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    prepare_torch(seed=0, threads=recipe.threads)
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    shift_and_factor = {
        name: (tensors.pop(f"{name}.shift").numpy(), tensors.pop(f"{name}.factor").numpy())
        for name in ("nodes", "configs")
    }
    model = LateFusionSage(recipe.late_fusion_sage)
    load_weights(model, tensors, run_dir / WEIGHTS)
    return TileRanker(
        model.eval(),
        NodeScaler(str(facts["scaling"]), *shift_and_factor["nodes"]),
        ConfigScaler(*shift_and_factor["configs"]),
    )
