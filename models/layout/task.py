"""Train and load the layout GNN."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.metrics import kendall_tau
from data.graphs.distinct import distinct_configs
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.nodes import prune_layout_graph
from features.scaling import NodeScaler
from features.statistics.configs import centred_statistics
from models.config.networks import LayoutGnnConfig
from models.config.recipe import Recipe
from models.graph_task import JudgedGraphs, NetworkRanker, Read, learn_nodes, load_ranker
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutNetwork
from models.training.dataset import LRUCache
from models.training.device import allows_tf32, torch_prepared, training_device
from models.training.folds import HeldOut, hold_out
from models.training.jobs import TrainJob
from models.training.loop import StepLoss, fit
from models.training.losses import LOSSES, PAIRWISE_LOSSES, order_confidence
from models.training.samplers import SAMPLERS
from models.training.weights import load_network, save_network

JUDGED_SAMPLES = 4
SCALED_CONFIGS = 2000  # of a graph, from which the scale of statistics is learned


@dataclass(frozen=True)
class LayoutTask(JudgedGraphs[LayoutInputs]):
    """Ranks a sample of one graph's distinct configs per step."""

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs, `configs_per_step` configs of each."""
        chosen = self.chosen(rng)
        losses = []
        for index in chosen:
            inputs = self.inputs(self.files[index])
            sample = self._draw(inputs, rng)
            scores, runtimes = model(inputs, sample), inputs.runtimes(sample)
            losses.append(ranking_loss(self.config, scores, runtimes, inputs.noise))
        return StepLoss(torch.stack(losses).mean(), self.named(chosen))

    def _draw(self, inputs: LayoutInputs, rng: np.random.Generator) -> NDArray[np.int64]:
        learned = self.held_out.configs(len(inputs.first), judged=False)
        draw, size = SAMPLERS[self.config.sampler], self.config.configs_per_step
        return learned[draw(inputs.runtime_ns[learned], size, rng)]

    def judged(self, model: Any, inputs: LayoutInputs) -> Iterator[float]:
        """Yield Kendall's tau of four samples as large as a step's, always the same.

        Samples of equal runtimes give no order and are left out.
        """
        positions = self.held_out.configs(len(inputs.first), judged=True)
        for draw in range(JUDGED_SAMPLES):
            rng = np.random.default_rng(draw)
            sample = rng.permutation(positions)[: self.config.configs_per_step]
            runtime_ns = inputs.runtime_ns[sample]
            if len(np.unique(runtime_ns)) > 1:
                scores = model(inputs, sample).float().cpu().numpy()
                yield kendall_tau(scores, runtime_ns) if np.isfinite(scores).all() else math.nan


def ranking_loss(config: LayoutGnnConfig, scores: Tensor, runtimes: Tensor, noise: float) -> Tensor:
    """Return the loss of scores (c,) on configs of one graph, whose runtimes scatter by `noise`."""
    if config.noise_weighted_pairs:
        weights = order_confidence(runtimes, noise)
        return PAIRWISE_LOSSES[config.loss](scores, runtimes, weights=weights)
    return LOSSES[config.loss](scores, runtimes)


def train(job: TrainJob, network: type[LayoutNetwork]) -> None:
    """Train the layout GNN `job.model`; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe: Recipe = job.recipe
    config: LayoutGnnConfig = getattr(recipe, job.model)
    device = training_device(recipe.accelerator)
    files = tuple(job.files)
    held_out = hold_out(files, job.seed) if config.training.early_stop else HeldOut(files)
    tf32 = allows_tf32(config.training)
    with torch_prepared(seed=job.seed, threads=recipe.n_threads, device=device, tf32=tf32):
        model = network(config)
        if job.shared:  # scaling and known opcodes belong to the weights
            scaler = load_network(model, job.shared.run_dir)
        else:
            scaler = _learn(model, held_out.learned, recipe)
        read = _reader(recipe, config, model, scaler)
        inputs = LRUCache(lambda file: read(read_layout(file)).to(device))
        task = LayoutTask(held_out.learned, inputs, config, held_out)
        fit(model, task, config.training, job, device)
        save_network(model, scaler, job.run_dir)


def _learn(model: LayoutNetwork, files: Sequence[GraphFile], recipe: Recipe) -> NodeScaler:
    rule, scaling = recipe.features.prune, recipe.features.scaling
    nodes = (prune_layout_graph(read_layout(file), rule=rule)[1] for file in files)
    scaler, opcodes = learn_nodes(nodes, scaling=scaling)
    model.set_known_opcodes(opcodes)
    if model.config.statistics:
        model.set_statistics_scale(_statistics_scale(files))  # type: ignore[operator]
    return scaler


def _statistics_scale(files: Sequence[GraphFile]) -> NDArray[np.float32]:
    """Return how far each statistic usually is from its mean over a graph's configs; (s,)."""
    squares = []
    for file in files:
        graph = read_layout(file)
        first, _ = distinct_configs(graph)
        few = np.random.default_rng(0).permutation(first)[:SCALED_CONFIGS]
        squares.append(np.square(centred_statistics(graph, few), dtype=np.float64).mean(axis=0))
    scale = np.sqrt(np.mean(squares, axis=0))
    return np.where(scale > 0, scale, 1).astype(np.float32)  # a constant one is 0 in any case


def _reader(recipe: Recipe, config: LayoutGnnConfig, _: nn.Module, scaler: NodeScaler) -> Read:
    return partial(
        layout_inputs,
        rule=recipe.features.prune,
        scaler=scaler,
        padding=recipe.features.padding,
        with_noise=config.noise_weighted_pairs,
        with_statistics=config.statistics,
    )


def load(name: str, run_dir: Path, recipe: Recipe, network: type[LayoutNetwork]) -> NetworkRanker:
    """Load what `train` wrote for the model `name`.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    config: LayoutGnnConfig = getattr(recipe, name)
    reader = partial(_reader, recipe, config)
    return load_ranker(partial(network, config), reader, run_dir, recipe)
