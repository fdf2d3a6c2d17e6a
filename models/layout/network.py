"""What a layout network is: one's own derives from LayoutNetwork, see docs/models.md."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.config.networks import LayoutGnnConfig
from models.config.recipe import FeaturesConfig
from models.layout.inputs import LayoutInputs, layout_inputs

N_OPCODES = 256

Positions = NDArray[np.int64]


class LayoutNetwork(nn.Module, ABC):
    """Scores configs of one graph; lower = faster. A subclass has a `forward`.

    Attributes:
        Config: what its table in a recipe, `config`, may hold.
        reads_statistics: whether `inputs` hold statistics of configs.
    """

    Config: ClassVar[type[LayoutGnnConfig]] = LayoutGnnConfig
    reads_statistics = False

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
        """Score a step's configs, those at `distinct` (c,) int64 among the graph's distinct ones.

        Returns:
            (c,) float32, lower = faster.
        """

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        """Be told before training which opcodes it has; the others keep their first embedding."""

    @torch.inference_mode()
    def score_all(self, inputs: LayoutInputs) -> NDArray[np.float32]:
        """Score every config of a graph; (c,) float32.

        For networks that score each config by itself: as many at a time as a step takes.
        """
        every, chunk = np.arange(len(inputs.first)), self.config.configs_per_step
        chunks = np.array_split(every, -(-len(every) // chunk))
        scores = torch.cat([self(inputs, part) for part in chunks])
        return scores.float().cpu().numpy()[inputs.group]
