"""Train and load the layout GNN."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import PipelineError
from common.metrics import kendall_tau
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph, LayoutGraph
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.nodes import prune_layout_graph
from features.scaling import NodeScaler, fit_node_scaler
from features.statistics.configs import centred_statistics
from models.config.networks import LayoutGnnConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutNetwork
from models.training.dataset import LRUCache
from models.training.device import device_of, ranking_device, torch_prepared, training_device
from models.training.folds import HeldOut, hold_out
from models.training.jobs import TrainJob
from models.training.loop import StepLoss, fit
from models.training.losses import LOSSES, PAIRWISE_LOSSES, order_confidence
from models.training.samplers import SAMPLERS
from models.training.weights import load_network, save_network

JUDGED_SAMPLES = 4
SCALED_CONFIGS = 2000  # of a graph, from which the scale of statistics is learned


@dataclass(frozen=True)
class LayoutTask:
    """Ranks a sample of one graph's distinct configs per step.

    Attributes:
        files: train graphs that a ranker can learn from.
        inputs: makes or finds the tensors of a graph.
        config: the model's configuration.
        held_out: what of the graphs is not learned from; None = nothing.
        rank, n_ranks: this process's number among those that share a step's graphs.
    """

    files: tuple[GraphFile, ...]
    inputs: LRUCache[LayoutInputs]
    config: LayoutGnnConfig
    held_out: HeldOut | None = None
    rank: int = 0
    n_ranks: int = 1

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs, `configs_per_step` configs of each.

        All processes draw the same graphs and configs; each computes every n_ranks-th graph, and
        its part of the mean.
        """
        chosen = self._chosen(rng)
        losses = []
        for number, file in enumerate(chosen):
            inputs = self.inputs(file)
            sample = self._draw(inputs, rng)
            if number % self.n_ranks == self.rank:
                losses.append(self._loss(model, inputs, sample))
        mine = chosen[self.rank :: self.n_ranks]
        share = len(mine) / len(chosen)
        loss = torch.stack(losses).mean() * share if losses else torch.zeros(())
        return StepLoss(loss, ", ".join(file.name for file in mine))

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the graphs of the step that `rng` draws."""
        self.inputs.prefetch(self._chosen(rng))

    def _chosen(self, rng: np.random.Generator) -> list[GraphFile]:
        order = rng.permutation(len(self.files))
        return [self.files[i] for i in order[: self.config.graphs_per_step]]

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Mean Kendall tau over the held-out graphs, on samples as large as a step's.

        Per graph four samples, always the same. Equal runtimes give no order and are left out.
        """
        assert self.held_out is not None
        taus = []
        for file in self.held_out.judged:
            inputs = self.inputs(file)
            positions = self.held_out.configs(len(inputs.first), judged=True)
            for draw in range(JUDGED_SAMPLES):
                rng = np.random.default_rng(draw)
                sample = rng.permutation(positions)[: self.config.configs_per_step]
                if len(np.unique(inputs.runtime_ns[sample])) < 2:
                    continue
                scores = model(inputs, sample).float().cpu().numpy()
                if not np.isfinite(scores).all():
                    return math.nan
                taus.append(kendall_tau(scores, inputs.runtime_ns[sample]))
        if not taus:
            raise PipelineError(
                "training.early_stop: no held-out graph or config gives an order to judge by; "
                "set it to 0, or add train graphs"
            )
        return float(np.mean(taus))

    def _draw(self, inputs: LayoutInputs, rng: np.random.Generator) -> NDArray[np.int64]:
        """Choose distinct configs to learn from; (r,) positions."""
        draw, size = SAMPLERS[self.config.sampler], self.config.configs_per_step
        if self.held_out is None:
            return draw(inputs.runtime_ns, size, rng)
        learned = self.held_out.configs(len(inputs.first), judged=False)
        return learned[draw(inputs.runtime_ns[learned], size, rng)]

    def _loss(self, model: nn.Module, inputs: LayoutInputs, sample: NDArray[np.int64]) -> Tensor:
        """Loss on the distinct configs at `sample` (r,) of one graph."""
        scores = model(inputs, sample)
        runtime_ns = torch.from_numpy(inputs.runtime_ns[sample]).to(scores.device)
        if self.config.noise_weighted_pairs:
            weights = order_confidence(runtime_ns, inputs.noise)
            return PAIRWISE_LOSSES[self.config.loss](scores, runtime_ns, weights=weights)
        return LOSSES[self.config.loss](scores, runtime_ns)


def train(job: TrainJob, network: type[LayoutNetwork]) -> None:
    """Train the layout GNN `job.model`; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe, config = job.recipe, layout_config(job.recipe, job.model)
    device = training_device(recipe.accelerator, processes=job.n_ranks)
    with torch_prepared(seed=job.seed, threads=recipe.threads, device=device):
        _train(job, network, config, device)


def _train(
    job: TrainJob, network: type[LayoutNetwork], config: LayoutGnnConfig, device: torch.device
) -> None:
    recipe = job.recipe
    early_stop = config.training.early_stop > 0
    held_out = hold_out(job.files, job.seed) if early_stop else None
    learned = held_out.learned if held_out else tuple(job.files)
    model = network(config)
    if job.shared:  # scaling and known opcodes belong to the weights
        scaler = load_network(model, job.shared.run_dir)
    else:
        scaler, opcodes = _learn_nodes(learned, recipe)
        model.set_known_opcodes(opcodes)
        if config.statistics:
            model.set_statistics_scale(_statistics_scale(learned))  # type: ignore[operator]

    def make(file: GraphFile) -> LayoutInputs:
        inputs = layout_inputs(
            read_layout(file),
            rule=recipe.features.prune,
            scaler=scaler,
            padding=recipe.features.padding,
            with_noise=config.noise_weighted_pairs,
            with_statistics=config.statistics,
        )
        return inputs.to(device)

    task = LayoutTask(learned, LRUCache(make), config, held_out, job.rank, job.n_ranks)
    fit(model, task, config.training, job, device)
    if job.rank > 0:
        return
    save_network(model, scaler, job.run_dir)


def _learn_nodes(
    files: Sequence[GraphFile], recipe: Recipe
) -> tuple[NodeScaler, NDArray[np.uint8]]:
    features = recipe.features
    opcodes = set[int]()

    def node_feats() -> Iterator[NDArray[np.float32]]:
        for file in files:
            _, nodes = prune_layout_graph(read_layout(file), rule=features.prune)
            opcodes.update(nodes.opcode.tolist())
            yield nodes.node_feat

    scaler = fit_node_scaler(node_feats(), scaling=features.scaling)
    return scaler, np.asarray(sorted(opcodes), dtype=np.uint8)


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


@dataclass(frozen=True)
class LayoutRanker:
    """A trained layout GNN."""

    model: LayoutNetwork
    scaler: NodeScaler
    features: FeaturesConfig
    threads: int

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a layout graph; (c,) float32, lower = faster."""
        assert isinstance(graph, LayoutGraph)
        device = device_of(self.model)
        with torch_prepared(threads=self.threads, device=device):
            inputs = layout_inputs(
                graph,
                rule=self.features.prune,
                scaler=self.scaler,
                padding=self.features.padding,
                with_statistics=self.model.config.statistics,
            )
            return self.model.score_all(inputs.to(device))


def load(name: str, run_dir: Path, recipe: Recipe, network: type[LayoutNetwork]) -> LayoutRanker:
    """Load what `train` wrote for the model `name`.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    device = ranking_device(recipe.accelerator)
    with torch_prepared(threads=recipe.threads, device=device):
        model = network(layout_config(recipe, name))
        scaler = load_network(model, run_dir)
    return LayoutRanker(model.to(device), scaler, recipe.features, recipe.threads)


def layout_config(recipe: Recipe, name: str) -> LayoutGnnConfig:
    """Return the table of a layout network in a recipe."""
    config = getattr(recipe, name)
    assert isinstance(config, LayoutGnnConfig)
    return config
