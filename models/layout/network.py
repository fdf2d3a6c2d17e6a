"""What a layout network is, and how it is trained.

One's own derives from LayoutNetwork, see docs/guides/add_a_model.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.metrics import ranking_score
from data.families import HeldOut, hold_out
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.tree import GraphFile
from features.scaling import NodeScaler
from features.statistics.configs import centred_statistics
from models.config.networks import LayoutGnnConfig
from models.config.recipe import FeaturesConfig
from models.graph_task import JudgedGraphs, begin_layout_network, loss_of, torch_for
from models.layout.inputs import LayoutInputs, layout_inputs
from models.registry import TrainJob
from models.training.cuda_graphs import RecordedSteps
from models.training.device import precision_on
from models.training.loop import StepLoss, fit, save_network
from models.training.losses import LOSSES, Loss

N_OPCODES = 256

Positions = NDArray[np.int64]


class LayoutNetwork(nn.Module, ABC):
    """Scores configs of one graph; lower = faster. A subclass has a `forward`.

    Attributes:
        Config: what its table in a recipe, `config`, may hold.
        losses: by the name that `config.loss` has; one's own may have more.
        reads_statistics: whether `inputs` hold statistics of configs.
        is_recordable: whether `forward` on a GPU runs the same operations for any configs of a
            graph, given as a tensor there, without randomness and without waiting for the GPU.
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
        """Return what makes of a graph what `forward` reads of it."""
        return partial(
            layout_inputs,
            rule=features.prune,
            scaler=scaler,
            with_statistics=self.reads_statistics,
        )

    @abstractmethod
    def forward(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score the configs at `distinct` (c,) int64 among a graph's distinct ones.

        Returns:
            (c,) float32, lower = faster.
        """

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        """Be told before training which opcodes it has; the others keep their first embedding."""

    @torch.inference_mode()
    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config by itself, as many at a time as a step takes; (c,) float32."""
        every, chunk = np.arange(len(inputs.first)), self.config.configs_per_step
        chunks = np.array_split(every, -(-len(every) // chunk))
        scores = torch.cat([self(inputs, part) for part in chunks])
        return scores.float().cpu().numpy()[inputs.group]


JUDGED_SAMPLES = 4
SCALED_CONFIGS = 2000  # of a graph, from which the scale of statistics is learned


@dataclass(frozen=True)
class LayoutTask(JudgedGraphs[LayoutInputs]):
    """Ranks a sample of one graph's distinct configs per step."""

    recorded: RecordedSteps | None = None  # which computes gradients on a GPU

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        return self.mean_loss(rng, lambda index: self.graph_loss(model, index, rng))

    def graph_loss(self, model: Any, index: int, rng: np.random.Generator) -> Tensor:
        inputs = self.inputs(self.files[index])
        learned = self.held_out.configs(len(inputs.first), judged=False)
        sample = rng.permutation(learned)[: self.config.configs_per_step]
        if self.recorded:
            return self.recorded.add_gradients(inputs, sample, share=1 / self.n_per_step)
        return sample_loss(model, inputs, sample)

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
                yield ranking_score("layout", scores, runtime_ns)


def sample_loss(model: Any, inputs: LayoutInputs, sample: Positions | Tensor) -> Tensor:
    """Return the loss, (), of the configs at `sample` (c,) among a graph's distinct ones."""
    return loss_of(model, model(inputs, sample), inputs.runtimes(sample))


def recorded_steps(model: LayoutNetwork, device: torch.device) -> RecordedSteps | None:
    """Return what records a network's steps on a GPU; None where that cannot be done.

    Gradients of float16 are scaled by a factor that a recording does not know.
    """
    precision = precision_on(device, model.config.training.precision)
    if device.type != "cuda" or precision == torch.float16 or not model.is_recordable:
        return None
    return RecordedSteps(model.to(device), partial(sample_loss, model))


def train(job: TrainJob, network: type[LayoutNetwork]) -> None:
    """Train the layout GNN `job.model`; write its weights with all it needs to read graphs."""
    with torch_for(job, network) as (config, device):
        files = tuple(job.files)
        held_out = hold_out(files, job.seed) if config.training.early_stop else HeldOut(files)
        learned = held_out.learned
        model, scaler, inputs = begin_layout_network(job, network, learned, device)
        if model.reads_statistics:
            model.set_statistics_scale(_statistics_scale(learned))
        recorded = recorded_steps(model, device)
        task = LayoutTask(learned, inputs, config, held_out, recorded)
        fit(model, task, config.training, job, device)
        save_network(model, scaler, job.run_dir)


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
