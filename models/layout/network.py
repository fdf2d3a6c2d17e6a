"""The base class and the training of layout networks.

A custom network derives from LayoutNetwork. See docs/guides/add_a_model.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.metrics import ranking_score
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.tree import GraphFile
from features.scaling import NodeScaler
from features.statistics.configs import config_moments
from features.statistics.layout_tables import layout_tables
from models.config.networks import LayoutGnnConfig, step_configs
from models.config.recipe import FeaturesConfig
from models.graph_task import (
    HeldOutGraphs,
    begin_layout_network,
    draw,
    held_out_graphs,
    loss_of,
    torch_for,
)
from models.layout.inputs import LayoutInputs, layout_reader
from models.registry import TrainJob
from models.training.loop import StepLoss, fit, save_network
from models.training.losses import LOSSES, Loss

if TYPE_CHECKING:
    from models.training.cuda_graphs import RecordedSteps

N_OPCODES = 256

Positions = NDArray[np.int64]
# A graph, and (c,) positions among its distinct configs.
Sample = tuple[LayoutInputs, Positions]


class LayoutNetwork(nn.Module, ABC):
    """Score configs of one graph. A lower score means a faster config. A subclass has a `forward`.

    Attributes:
        Config: Class of the network's table in a recipe, whose values are in `config`.
        losses: Losses by the name in `config.loss`. A custom network may have more.
        is_recordable: True if a CUDA graph can record `forward`. It must run the same operations
            for any configs of a graph, without a wait for the GPU, and draw random numbers only by
            the GPU's default generator, as dropout does.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = LayoutGnnConfig
    losses: ClassVar[Mapping[str, Loss]] = LOSSES
    reads_statistics = False
    is_recordable = False

    def __init__(self, config: LayoutGnnConfig) -> None:
        super().__init__()
        self.config = config

    def reader(
        self, features: FeaturesConfig, scaler: NodeScaler
    ) -> Callable[[LayoutGraph], LayoutInputs]:
        """Return the function that computes the inputs of a graph, by the recipe's `features`."""
        return layout_reader(features, scaler, with_statistics=self.reads_statistics)

    @abstractmethod
    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score some configs of a graph.

        Args:
            inputs: Result of `reader` for the graph.
            distinct: (c,) int64 positions among the distinct configs.

        Returns:
            (c,) float32 scores. A lower score means a faster config.
        """

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        """Receive the opcodes of the train graphs before training. The default ignores them."""

    @torch.inference_mode()
    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config of a graph, in chunks of `chunk_for` configs.

        Args:
            inputs: Result of `reader` for the graph.

        Returns:
            (c,) float32 scores.
        """
        n_distinct = len(inputs.first)
        chunks = np.array_split(np.arange(n_distinct), -(-n_distinct // self.chunk_for(inputs)))
        scores = torch.cat([self(inputs, part) for part in chunks])
        return scores.float().cpu().numpy()[inputs.group]

    def chunk_for(self, inputs: LayoutInputs) -> int:
        """Return the number of configs to score at once. The default is that of a step."""
        return self.config.configs_per_step


N_HELD_OUT_SAMPLES = 4


@dataclass(frozen=True)
class LayoutTask(HeldOutGraphs[LayoutInputs]):
    """Train on a sample of the distinct configs of each of a step's graphs."""

    recorder: "RecordedSteps | None" = None  # computes gradients on a GPU

    def step_loss(self, model: nn.Module, step: int, rng: np.random.Generator) -> StepLoss:
        indices = self.graphs_of(step)
        samples = [self.draw_sample(index, rng) for index in indices]
        names = self.names_of(indices)
        if self.recorder:
            return self.recorder.step_loss(samples), names
        return torch.stack([sample_loss(model, *sample) for sample in samples]).mean(), names

    def draw_sample(self, index: int, rng: np.random.Generator) -> Sample:
        inputs = self.inputs(self.files[index])
        train_configs = self.held_out.configs(len(inputs.first), judged=False)
        n_configs = step_configs(self.config, inputs.n_nodes)
        return inputs, train_configs[draw(rng, len(train_configs), n_configs)]

    def judged(self, model: Any, inputs: LayoutInputs) -> Iterator[float]:
        """Yield Kendall's tau of fixed samples of held-out configs.

        A sample is as large as that of a step. Samples of equal runtimes are left out.
        """
        positions = self.held_out.configs(len(inputs.first), judged=True)
        n_configs = step_configs(self.config, inputs.n_nodes)
        for seed in range(N_HELD_OUT_SAMPLES):
            rng = np.random.default_rng(seed)
            sample = rng.permutation(positions)[:n_configs]
            runtime_ns = inputs.runtime_ns[sample]
            if len(np.unique(runtime_ns)) > 1:
                scores = model(inputs, sample).float().cpu().numpy()
                yield ranking_score("layout", scores, runtime_ns)


def sample_loss(model: Any, inputs: LayoutInputs, sample: Positions | Tensor) -> Tensor:
    """Return the loss of some configs.

    Args:
        model: Layout network.
        inputs: Inputs of one graph.
        sample: (c,) positions among the distinct configs.
    """
    return loss_of(model, model(inputs, sample), inputs.runtimes(sample))


def recorded_steps(model: LayoutNetwork, device: torch.device) -> "RecordedSteps | None":
    """Return the recorder of a network's training steps, or None if it cannot record."""
    if device.type != "cuda" or not model.is_recordable:
        return None
    from models.training.cuda_graphs import RecordedSteps

    return RecordedSteps(model.to(device), partial(sample_loss, model))


def train_layout_network(job: TrainJob, network: type[LayoutNetwork]) -> None:
    """Train a layout network, and write its weights and its scaler."""
    with torch_for(job, network) as (config, device):
        held_out = held_out_graphs(job, config.training)
        files = held_out.learned
        model, scaler, inputs = begin_layout_network(job, network, files, device)
        if model.reads_statistics:
            model.set_statistics_scale(_statistics_scale(files))
        recorder = recorded_steps(model, device)
        task = LayoutTask(files, inputs, config, job.seed, held_out, recorder)
        fit(model, task, config.training, job, device)
        save_network(model, scaler, job.run_dir)


def _statistics_scale(files: Sequence[GraphFile]) -> NDArray[np.float32]:
    # (s,) typical distance of each statistic from its mean over a graph's configs.
    graphs = map(read_layout, files)
    moments = (config_moments(g, layout_tables(g), distinct_configs(g)[0]) for g in graphs)
    scale = np.sqrt(np.mean([variance for _, variance in moments], axis=0))
    # A constant statistic is 0 with any scale.
    return np.where(scale > 0, scale, 1).astype(np.float32)
