"""Exact ranking by `cross_config_sage` in chunks: each config is scored as if all were in one pass.

A block needs its normaliser over all configs before any config can pass it. So configs pass block
by block, in chunks. Chunks beyond a limit of memory start again at the first block. Memory does not
grow with the number of configs.

Shapes: n nodes, c configs, h channels.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.layout.attention import log_sum_exp, weigh
from models.layout.inputs import LayoutInputs
from models.layout.network import Positions
from models.layout.plain_ops import add_projection, channel_gate, node_slices
from models.training.device import ranking_bytes, storage_dtype, without_autocast

# The number of a block, its x and its messages, (n, c, h) each.
BlockState = tuple[int, Tensor, Tensor]


@torch.inference_mode()
def score_in_chunks(
    model: Any,
    inputs: LayoutInputs,
    *,
    chunk_configs: int | None = None,
    kept_bytes: int | None = None,
) -> NDArray[np.float32]:
    """Score every config of a graph as if one forward pass had all configs.

    Args:
        model: A `CrossConfigSage`, whose module imports this one.
        chunk_configs: Number of configs of a chunk. None derives it from `ranking_bytes`.
        kept_bytes: Limit in bytes of the intermediate tensors. None derives it from
            `ranking_bytes`.

    Returns:
        (c,) float32 scores.
    """
    n_counted = len(inputs.first) - inputs.n_query_configs
    device = inputs.opcode.device
    tensor_bytes, kept_limit = ranking_bytes(device, model.config.inference_tensor_mib)
    if chunk_configs is None:
        width_bytes = model.config.hidden * storage_dtype(device).itemsize
        chunk_configs = max(4, tensor_bytes // (len(inputs.opcode) * width_bytes))
    chunks = [
        part
        for rows in np.split(np.arange(len(inputs.first)), [n_counted])
        for part in np.array_split(rows, -(-len(rows) // chunk_configs) or 1)
        if len(part)
    ]
    if model.config.cross_config and len(chunks) > 1:
        scores = _scores_by_block(model, inputs, chunks, n_counted, kept_bytes or kept_limit)
    else:
        scores = [model(inputs, chunk) for chunk in chunks]
    return torch.cat(scores).cpu().numpy()[inputs.group]


def _scores_by_block(
    model: Any,
    inputs: LayoutInputs,
    chunks: Sequence[Positions],
    n_counted: int,
    kept_bytes: int,
) -> list[Tensor]:
    states: list[BlockState | None] = [None] * len(chunks)
    normalisers: list[Tensor] = []
    for block in model.blocks:
        sums, free_bytes = list[Tensor](), kept_bytes
        for number, chunk in enumerate(chunks):
            state = _advance(model, inputs, chunk, states[number], normalisers)
            _, x, messages = state
            # Query configs do not change the scores of other configs.
            if chunk[0] < n_counted:
                sums.append(_log_sum_exp(messages, block))
            free_bytes -= x.nbytes + messages.nbytes
            states[number] = state if free_bytes >= 0 else None
        normalisers.append(reduce(torch.logaddexp, sums) - np.log(n_counted))  # (n, 1, h)
    scores = []
    for number, chunk in enumerate(chunks):
        _, x, messages = _advance(model, inputs, chunk, states[number], normalisers[:-1])
        x = _finish(x, messages, normalisers[-1], model.blocks[-1])
        scores.append(model.read_out(inputs, x, chunk))
        states[number] = None
    return scores


def _advance(
    model: Any,
    inputs: LayoutInputs,
    chunk: Positions,
    state: BlockState | None,
    normalisers: Sequence[Tensor],
) -> BlockState:
    # Take a chunk through all blocks with a normaliser.
    if state is None:
        x, y = model.embed(inputs, chunk)
        state = 0, x, _messages(y, model.blocks[0])
    start, x, messages = state
    for number in range(start, len(normalisers)):
        x = _finish(x, messages, normalisers[number], model.blocks[number])
        block = model.blocks[number + 1]
        messages = _messages(block.aggregate(x, inputs.neighbours), block)
    return len(normalisers), x, messages


@without_autocast
def _messages(y: Tensor, block: Any) -> Tensor:
    """Compute the messages of a block, (n, c, h), in the memory of its aggregation y."""
    weights = [tensor.to(y.dtype) for tensor in block.node_weights()]
    for part in node_slices(y):
        torch.ops.aten.glu.out(channel_gate(y[part], *weights[:4])[0], 0, out=y[part][None])
    return y


@without_autocast
def _log_sum_exp(messages: Tensor, block: Any) -> Tensor:
    """Return the log of the sum over these configs of exp(u / T), (n, 1, h) float32."""
    sharpness = block.configs.sharpness()
    return torch.cat([log_sum_exp(messages[part], sharpness) for part in node_slices(messages)])


@without_autocast
def _finish(x: Tensor, messages: Tensor, normaliser: Tensor, block: Any) -> Tensor:
    """Compute the result of a block from its input x, (n, c, h), in the memory of its messages."""
    sharpness = block.configs.sharpness()
    weight, bias = (tensor.to(x.dtype) for tensor in block.project.parameters())
    for part in node_slices(messages):
        context = weigh(messages[part], sharpness, normaliser[part])
        messages[part] = add_projection(x[part], (messages[part], context), weight, bias)
    return messages
