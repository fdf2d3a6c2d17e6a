"""The layout GNNs by name: their configuration, how they are built, and how they rank a graph.

A network is an nn.Module with
    forward(inputs: LayoutInputs, distinct) -> (c,) float32: scores of a step's configs, given as
        (c,) int64 positions among the graph's distinct ones; lower = faster;
    set_known_opcodes(opcodes): told the opcodes (uint8) that training has, before training.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.config.networks import LayoutGnnConfig
from models.config.recipe import Recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.gcn import BaselineGcn, score_in_chunks
from models.layout.global_attention_sage import GlobalAttentionSage
from models.layout.inference import chunk_for, score_all
from models.layout.inputs import LayoutInputs
from models.layout.tgraph import ReferenceSage, score_in_batches


@dataclass(frozen=True)
class LayoutNet:
    """One network.

    Attributes:
        config_of: where its configuration stands in a recipe.
        build: makes it from that configuration.
        score_all: scores every config of a graph in bounded memory; (c,) float32.
    """

    config_of: Callable[[Recipe], LayoutGnnConfig]
    build: Callable[[Any], Any]
    score_all: Callable[[Any, LayoutInputs], NDArray[np.float32]]


def _score_streaming(model: CrossConfigSage, inputs: LayoutInputs) -> NDArray[np.float32]:
    return score_all(model, inputs, chunk_configs=chunk_for(inputs, model.config))


LAYOUT_NETS: dict[str, LayoutNet] = {
    "cross_config_sage": LayoutNet(
        lambda recipe: recipe.cross_config_sage, CrossConfigSage, _score_streaming
    ),
    "global_attention_sage": LayoutNet(
        lambda recipe: recipe.global_attention_sage, GlobalAttentionSage, _score_streaming
    ),
    "reference_sage": LayoutNet(
        lambda recipe: recipe.reference_sage, ReferenceSage, score_in_batches
    ),
    "baseline_gcn": LayoutNet(lambda recipe: recipe.baseline_gcn, BaselineGcn, score_in_chunks),
}
