"""Score all configs of a graph by a layout network: exactly, in bounded memory, each part once.

The attention of a block needs one number per node and channel of all configs, its normaliser,
before any config can pass the block. So configs go through the network block by block, some at a
time. What they have become is kept between the blocks as long as it fits; the others start again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.config.networks import CrossConfigSageConfig
from models.layout.inputs import LayoutInputs
from models.layout.network import Positions

KEPT_BYTES = 512 << 20


class BlockNetwork(Protocol):
    """A network of blocks such as models.layout.cross_config_sage.CrossConfigSage."""

    blocks: Sequence[Any]

    def __call__(self, inputs: LayoutInputs, distinct: Positions) -> Tensor:
        """Score configs that see each other alone; (c,)."""

    def embed(self, inputs: LayoutInputs, distinct: Positions) -> tuple[Tensor, Tensor]:
        """Return what enters the first block, (m, c, h), and the same aggregated."""

    def read_out(self, inputs: LayoutInputs, x: Tensor, distinct: Positions) -> Tensor:
        """Return the scores (c,) from what leaves the last block, (m, c, h)."""


def chunk_for(inputs: LayoutInputs, config: CrossConfigSageConfig) -> int:
    """Return how many configs to score at once, so that an (m, c, h) tensor stays small.

    Tensors of some 12 MiB stay in the processor's cache and below the size from which the C
    library asks the system for fresh, zeroed pages each time: 3 to 4 times faster than 64 configs
    at once on a graph of 2,850 kept nodes (docs/results/answered_once.md).
    """
    bytes_per_config = len(inputs.opcode) * config.hidden * 4
    return max(4, (config.inference_tensor_mib << 20) // bytes_per_config)


@torch.inference_mode()
def score_all(
    model: BlockNetwork,
    inputs: LayoutInputs,
    *,
    chunk_configs: int,
    kept_bytes: int = KEPT_BYTES,
) -> NDArray[np.float32]:
    """Score every config of a graph. Equal configs get equal scores: only distinct ones are scored.

    Where all that b blocks make fits into `kept_bytes`, each is computed once; where nothing does,
    the first block b + 1 times. Memory grows with `chunk_configs` and `kept_bytes`, not with c.

    Args:
        model: trained, in evaluation mode.
        inputs: the graph.
        chunk_configs: how many configs go through a block at once.
        kept_bytes: of what is kept of configs from one block to the next.

    Returns:
        (c,) float32 scores, lower = faster.
    """
    n_distinct = len(inputs.first)
    chunks = np.array_split(np.arange(n_distinct), max(1, -(-n_distinct // chunk_configs)))
    attends = all(block.configs is not None for block in model.blocks)
    if attends and len(chunks) > 1:
        scores = _scores_by_block(model, inputs, chunks, kept_bytes)
    else:  # with all configs in one chunk, each block sees them all
        scores = [model(inputs, chunk) for chunk in chunks]
    return torch.cat(scores).cpu().numpy()[inputs.group]


@dataclass
class _Reached:
    """What some configs are when they meet the others in a block.

    Attributes:
        block: the block's number.
        x: (m, c, h) what enters the block.
        messages: (m, c, h) by `SageBlock.messages`.
    """

    block: int
    x: Tensor
    messages: Tensor

    @property
    def n_bytes(self) -> int:
        """Return how much memory they take."""
        return self.x.nbytes + self.messages.nbytes


def _scores_by_block(
    model: BlockNetwork, inputs: LayoutInputs, chunks: Sequence[Positions], kept_bytes: int
) -> list[Tensor]:
    """Return the scores of each chunk (c,) of configs."""
    n_distinct = sum(map(len, chunks))
    kept: list[_Reached | None] = [None] * len(chunks)
    normalisers: list[Tensor] = []
    for target, block in enumerate(model.blocks):
        total: Tensor | None = None
        left = kept_bytes
        for number, chunk in enumerate(chunks):
            reached = _reach(model, inputs, chunk, normalisers, target, kept[number])
            part = block.log_sum_exp(reached.messages)
            total = part if total is None else torch.logaddexp(total, part)
            left -= reached.n_bytes
            kept[number] = reached if left >= 0 else None
        assert total is not None
        normalisers.append(total - np.log(n_distinct))
    scores = []
    for number, chunk in enumerate(chunks):
        last = _reach(model, inputs, chunk, normalisers, len(model.blocks) - 1, kept[number])
        x = model.blocks[-1].finish(last.x, last.messages, normalisers[-1])
        scores.append(model.read_out(inputs, x, chunk))
        kept[number] = None
    return scores


def _reach(  # noqa: PLR0917 -- all of it is the state of one loop
    model: BlockNetwork,
    inputs: LayoutInputs,
    chunk: Positions,
    normalisers: Sequence[Tensor],
    target: int,
    kept: _Reached | None,
) -> _Reached:
    reached = kept
    if reached is None:
        x, aggregated = model.embed(inputs, chunk)
        reached = _Reached(0, x, model.blocks[0].messages_(aggregated))
    while reached.block < target:
        number = reached.block
        x = model.blocks[number].finish(reached.x, reached.messages, normalisers[number])
        block = model.blocks[number + 1]
        messages = block.messages_(block.aggregate(x, inputs.neighbours))
        reached = _Reached(number + 1, x, messages)
    return reached
