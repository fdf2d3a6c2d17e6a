"""Training steps recorded as CUDA graphs.

A step launches hundreds of kernels. On small graphs, the launches take longer than the kernels. A
CUDA graph replays all of them with one launch (Gray, "Getting Started with CUDA Graphs", NVIDIA,
2019). Its inputs and outputs have fixed addresses, so each train graph has a recording. All
recordings share one pool of memory, because they run in turn.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.training.device import upload

GraphLoss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    rows: Tensor  # (c,) int64 configs of the next replay
    loss: Tensor  # ()
    gradients: tuple[Tensor | None, ...]


class RecordedSteps:
    """Compute gradients on a GPU: the first step of a graph runs plainly, later steps are replayed.

    A recording needs compiled kernels and initialised libraries, so the first step of a graph is
    not recorded. A recording is deleted together with the graph's inputs.

    Args:
        model: Network on a GPU. Its forward pass must run the same operations for any configs.
        graph_loss: Function from a graph's inputs and the rows of its configs, (c,) int64 on the
            GPU, to a loss, (). It must not wait for the GPU.
    """

    def __init__(self, model: nn.Module, graph_loss: GraphLoss) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._graph_loss = graph_loss
        self._device = self._parameters[0].device
        self._pool = torch.cuda.graph_pool_handle()
        self._recordings: dict[tuple[int, int], _Recording | None] = {}

    def add_gradients(self, inputs: Any, rows: NDArray[np.int64], *, share: float) -> Tensor:
        """Add the gradients of a graph's loss to those of the parameters.

        Args:
            inputs: Inputs of the graph, on the GPU.
            rows: (c,) distinct configs of the step.
            share: Factor of the gradients.
        """
        key, on_device = (id(inputs), len(rows)), upload(rows, self._device)
        if key not in self._recordings:
            weakref.finalize(inputs, self._recordings.pop, key, None)
            self._recordings[key] = None
            loss, gradients = self._compute(inputs, on_device)
        else:
            recording = self._recordings[key] or self._record(inputs, on_device)
            self._recordings[key] = recording
            recording.rows.copy_(on_device)
            recording.graph.replay()
            loss, gradients = recording.loss.clone(), recording.gradients
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                before, product = parameter.grad, gradient if share == 1 else gradient * share
                parameter.grad = product if before is None else before + product
        return loss

    def _compute(self, inputs: Any, rows: Tensor) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = self._graph_loss(inputs, rows)
        # The forward pass has fixed the types that the backward pass uses.
        with torch.autocast(self._device.type, enabled=False):
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        # The fused optimiser needs gradients with the strides of their parameters.
        return loss.detach(), tuple(g if g is None else g.contiguous() for g in gradients)

    def _record(self, inputs: Any, rows: Tensor) -> _Recording:
        graph, rows = torch.cuda.CUDAGraph(), rows.clone()
        # Another thread may read the next graph, so the check covers only this thread.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            loss, gradients = self._compute(inputs, rows)
        return _Recording(graph, rows, loss, gradients)
