"""Train and load the layout GNN."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graph import Graph, LayoutGraph
from data.read import read_layout
from data.tree import GraphFile
from features.node_features import NodeScaler, fit_node_scaler
from features.pruned_nodes import prune_layout_graph
from models.engine import StepLoss, fit, prepare_torch
from models.jobs import TrainJob
from models.layout_inputs import LayoutInputs, layout_inputs
from models.layout_nets import LAYOUT_NETS
from models.losses import LOSSES, PAIRWISE_LOSSES, order_confidence
from models.model_configs import LayoutGnnConfig
from models.recipe import Recipe
from models.samplers import SAMPLERS
from models.train_set import RecentlyUsed
from models.weights import load_tensors, load_weights, save_tensors

WEIGHTS = "model.safetensors"
# Pruned graphs and int8 configs kept between steps; graphs beyond this are read again.
CACHE_BYTES = 2 << 30


@dataclass(frozen=True)
class LayoutTask:
    """Ranks a sample of one graph's distinct configs per step.

    Attributes:
        files: train graphs that a ranker can learn from.
        inputs: makes or finds the tensors of a graph.
        config: the model's configuration.
    """

    files: tuple[GraphFile, ...]
    inputs: RecentlyUsed[LayoutInputs]
    config: LayoutGnnConfig

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs, `configs_per_step` configs of each."""
        n_graphs = min(self.config.graphs_per_step, len(self.files))
        chosen = [self.files[i] for i in rng.permutation(len(self.files))[:n_graphs]]
        draw = SAMPLERS[self.config.sampler]
        losses = []
        for file in chosen:
            inputs = self.inputs(file)
            sample = draw(inputs.runtime_ns, self.config.configs_per_step, rng)
            losses.append(self._loss(model, inputs, sample))
        return StepLoss(torch.stack(losses).mean(), ", ".join(file.name for file in chosen))

    def _loss(self, model: nn.Module, inputs: LayoutInputs, sample: NDArray[np.int64]) -> Tensor:
        """Loss on the distinct configs at `sample` (r,) of one graph."""
        scores = model(inputs, inputs.choices(sample))
        runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])
        if self.config.weigh_pairs:
            weights = order_confidence(runtime_ns, inputs.noise)
            return PAIRWISE_LOSSES[self.config.loss](scores, runtime_ns, weights=weights)
        return LOSSES[self.config.loss](scores, runtime_ns)


def train_layout(job: TrainJob) -> None:
    """Train the layout GNN `job.model`; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe, net = job.recipe, LAYOUT_NETS[job.model]
    config = net.config_of(recipe)
    prepare_torch(seed=job.seed, threads=recipe.threads)
    scaler, opcodes = _learn_nodes(job)

    def make(file: GraphFile) -> LayoutInputs:
        return layout_inputs(
            read_layout(file),
            rule=recipe.features.prune,
            scaler=scaler,
            with_noise=config.weigh_pairs,
        )

    model = net.build(config)
    model.set_known_opcodes(opcodes)
    cache = RecentlyUsed(make, _bytes, max_bytes=CACHE_BYTES)
    task = LayoutTask(tuple(job.files), cache, config)
    fit(model, task, config.training, seed=job.seed, run_dir=job.run_dir, progress=job.progress)
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors["nodes.shift"] = torch.from_numpy(scaler.shift)
    tensors["nodes.factor"] = torch.from_numpy(scaler.factor)
    save_tensors(job.run_dir / WEIGHTS, tensors, {"scaling": scaler.scaling})


def _learn_nodes(job: TrainJob) -> tuple[NodeScaler, NDArray[np.uint8]]:
    """Learn the scaling, and which opcodes occur, from the pruned train graphs."""
    features = job.recipe.features
    opcodes = set[int]()

    def node_feats() -> Iterator[NDArray[np.float32]]:
        for file in job.files:
            _, nodes = prune_layout_graph(read_layout(file), rule=features.prune)
            opcodes.update(nodes.opcode.tolist())
            yield nodes.node_feat

    scaler = fit_node_scaler(node_feats(), scaling=features.scaling)
    return scaler, np.asarray(sorted(opcodes), dtype=np.uint8)


def _bytes(inputs: LayoutInputs) -> int:
    configs = inputs.configs.n_configs * inputs.configs.n_configurable * 18
    return configs + inputs.node_feat.nbytes + inputs.neighbours.nbytes


@dataclass(frozen=True)
class LayoutRanker:
    """A trained layout GNN."""

    name: str
    model: nn.Module
    scaler: NodeScaler
    recipe: Recipe

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a layout graph; (c,) float32, lower = faster."""
        assert isinstance(graph, LayoutGraph)
        inputs = layout_inputs(graph, rule=self.recipe.features.prune, scaler=self.scaler)
        return LAYOUT_NETS[self.name].score_all(self.model, inputs)


def load_layout(name: str, run_dir: Path, recipe: Recipe) -> LayoutRanker:
    """Load what `train_layout` wrote for the model `name`.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    prepare_torch(seed=0, threads=recipe.threads)
    tensors, facts = load_tensors(run_dir / WEIGHTS)
    scaler = NodeScaler(
        str(facts["scaling"]),
        tensors.pop("nodes.shift").numpy(),
        tensors.pop("nodes.factor").numpy(),
    )
    net = LAYOUT_NETS[name]
    model = net.build(net.config_of(recipe))
    load_weights(model, tensors, run_dir / WEIGHTS)
    return LayoutRanker(name, model.eval(), scaler, recipe)
