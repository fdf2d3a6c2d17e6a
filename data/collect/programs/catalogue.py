"""The programs that are measured for the sample: their families, sizes and splits.

A family is one architecture; its depths, batch sizes and training steps are siblings, and all of
them lie in one split.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from data.collect.layouts.realise import ProgramSource, Source
from data.collect.programs import convolutional, dense_and_recurrent, transformers
from data.collect.programs.layers import (
    Draw,
    Network,
    Weights,
    example_target,
    training_step,
)

Parts = tuple[Network, Weights, Any]
Architecture = Callable[[int], Parts]
TARGET_SEED = 99

SPLIT_OF_FAMILY = {
    "plain": "train",
    "residual": "train",
    "depthwise": "train",
    "unet": "train",
    "mlp": "train",
    "mixer": "train",
    "lstm": "train",
    "dilated": "train",
    "autoencoder": "valid",
    "gru": "valid",
    "volume": "test",
    "dense_block": "test",
    "recommender": "test",
    "attention": "train",
    "encoder": "train",
    "linear_attention": "train",
    "causal": "valid",
    "shared": "test",
    "decoder": "test",
}


def catalogue() -> list[ProgramSource]:
    """Return all programs, by source and family."""
    return [*_without_transformers(), *_transformers()]


def split_of(program: ProgramSource) -> str:
    """Return the split ("train", "valid", "test") in which a program's family lies."""
    return SPLIT_OF_FAMILY[program.family]


def _without_transformers() -> list[ProgramSource]:
    nets, dense = convolutional, dense_and_recurrent
    add = partial(_siblings, "xla")
    return [
        *add("plain", nets.plain, forward=(2, 4), training=(2,)),
        *add("residual", nets.residual, forward=(1, 2), training=(1,)),
        *add("depthwise", nets.depthwise, forward=(1,)),
        *add("unet", nets.unet, forward=(2, 6), training=(2,)),
        *add("mlp", dense.mlp, forward=(16, 64), training=(32,)),
        *add("mixer", dense.mixer, forward=(1, 4)),
        *add("lstm", dense.lstm, forward=(4, 16), training=(4,)),
        *add("dilated", nets.dilated, forward=(1, 4)),
        *add("autoencoder", nets.autoencoder, forward=(4,), training=(2,)),
        *add("gru", dense.gru, forward=(8,)),
        *add("volume", nets.volume, forward=(1, 2)),
        *add("dense_block", nets.dense_block, forward=(2, 4)),
        *add("recommender", dense.recommender, forward=(64,)),
    ]


def _transformers() -> list[ProgramSource]:
    nets = transformers
    add = partial(_siblings, "nlp")
    return [
        *add("attention", nets.attention, forward=(2, 8)),
        *add("encoder", partial(nets.encoder, depth=1), forward=(4,), training=(2,), depth=1),
        *add("encoder", partial(nets.encoder, depth=2), forward=(2,), depth=2),
        *add("encoder", partial(nets.encoder, depth=4), forward=(1,), depth=4),
        *add("encoder", partial(nets.encoder, depth=8), forward=(1,), depth=8),
        *add("linear_attention", partial(nets.linear_attention, depth=2), forward=(2,), depth=2),
        *add("causal", partial(nets.causal, depth=2), forward=(2,), training=(1,), depth=2),
        *add("shared", partial(nets.shared, depth=3), forward=(2,), depth=3),
        *add("decoder", partial(nets.decoder, depth=2), forward=(1, 4), depth=2),
    ]


def _siblings(
    source: Source,
    family: str,
    architecture: Architecture,
    *,
    forward: tuple[int, ...],
    training: tuple[int, ...] = (),
    depth: int | None = None,
) -> list[ProgramSource]:
    """Return the forward programs and training steps of one architecture, by batch size."""
    stem = family if depth is None else f"{family}_d{depth}"
    programs = [
        ProgramSource(f"{stem}_b{b}", family, source, partial(_build_forward, architecture, b))
        for b in forward
    ]
    programs += [
        ProgramSource(f"{stem}_train_b{b}", family, source, partial(_build_step, architecture, b))
        for b in training
    ]
    return programs


def _build_forward(
    architecture: Architecture, batch: int
) -> tuple[Callable[..., object], tuple[object, ...]]:
    network, weights, inputs = architecture(batch)
    return network, (weights, inputs)


def _build_step(
    architecture: Architecture, batch: int
) -> tuple[Callable[..., object], tuple[object, ...]]:
    network, weights, inputs = architecture(batch)
    target = example_target(network, weights, inputs, Draw(TARGET_SEED))
    return training_step(network), (weights, inputs, target)
