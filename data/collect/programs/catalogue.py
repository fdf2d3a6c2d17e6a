"""The programs that are measured for the sample: their families, sizes and splits.

A family is one architecture; its depths, batch sizes and training steps are siblings, and all of
them lie in one split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from data.collect.layouts.module import ProgramSource, Source
from data.collect.programs import convolutional as nets
from data.collect.programs import dense_and_recurrent as dense
from data.collect.programs import transformers
from data.collect.programs.layers import Draw, Network, Weights, example_target, training_step

Architecture = Callable[..., tuple[Network, Weights, Any]]
Build = Callable[[], tuple[Callable[..., object], tuple[object, ...]]]
TARGET_SEED = 99


@dataclass(frozen=True)
class Siblings:
    """Programs of one architecture: forward by batch size, and training steps."""

    family: str
    source: Source
    split: str
    architecture: Architecture
    forward: tuple[int, ...]
    training: tuple[int, ...] = ()
    depth: int | None = None

    def programs(self) -> list[ProgramSource]:
        """Return them, forward programs first."""
        stem = self.family if self.depth is None else f"{self.family}_d{self.depth}"
        given = {} if self.depth is None else {"depth": self.depth}
        made = partial(self.architecture, **given)
        named: list[tuple[str, Build]] = [
            *((f"{stem}_b{b}", partial(_forward, made, b)) for b in self.forward),
            *((f"{stem}_train_b{b}", partial(_step, made, b)) for b in self.training),
        ]
        return [ProgramSource(name, self.family, self.source, build) for name, build in named]


CATALOGUE = (
    Siblings("plain", "xla", "train", nets.plain, (2, 4), (2,)),
    Siblings("residual", "xla", "train", nets.residual, (1, 2), (1,)),
    Siblings("depthwise", "xla", "train", nets.depthwise, (1,)),
    Siblings("unet", "xla", "train", nets.unet, (2, 6), (2,)),
    Siblings("mlp", "xla", "train", dense.mlp, (16, 64), (32,)),
    Siblings("mixer", "xla", "train", dense.mixer, (1, 4)),
    Siblings("lstm", "xla", "train", dense.lstm, (4, 16), (4,)),
    Siblings("dilated", "xla", "train", nets.dilated, (1, 4)),
    Siblings("autoencoder", "xla", "valid", nets.autoencoder, (4,), (2,)),
    Siblings("gru", "xla", "valid", dense.gru, (8,)),
    Siblings("volume", "xla", "test", nets.volume, (1, 2)),
    Siblings("dense_block", "xla", "test", nets.dense_block, (2, 4)),
    Siblings("recommender", "xla", "test", dense.recommender, (64,)),
    Siblings("attention", "nlp", "train", transformers.attention, (2, 8)),
    Siblings("encoder", "nlp", "train", transformers.encoder, (4,), (2,), depth=1),
    Siblings("encoder", "nlp", "train", transformers.encoder, (2,), depth=2),
    Siblings("encoder", "nlp", "train", transformers.encoder, (1,), depth=4),
    Siblings("encoder", "nlp", "train", transformers.encoder, (1,), depth=8),
    Siblings("linear_attention", "nlp", "train", transformers.linear_attention, (2,), depth=2),
    Siblings("causal", "nlp", "valid", transformers.causal, (2,), (1,), depth=2),
    Siblings("shared", "nlp", "test", transformers.shared, (2,), depth=3),
    Siblings("decoder", "nlp", "test", transformers.decoder, (1, 4), depth=2),
)


def catalogue() -> list[ProgramSource]:
    """Return all programs, by source and family."""
    return [program for siblings in CATALOGUE for program in siblings.programs()]


def split_of(program: ProgramSource) -> str:
    """Return the split ("train", "valid", "test") in which a program's family lies."""
    return next(siblings.split for siblings in CATALOGUE if siblings.family == program.family)


def _forward(
    architecture: Architecture, batch: int
) -> tuple[Callable[..., object], tuple[object, ...]]:
    network, weights, inputs = architecture(batch)
    return network, (weights, inputs)


def _step(
    architecture: Architecture, batch: int
) -> tuple[Callable[..., object], tuple[object, ...]]:
    network, weights, inputs = architecture(batch)
    target = example_target(network, weights, inputs, Draw(TARGET_SEED))
    return training_step(network), (weights, inputs, target)
