"""Training steps recorded as CUDA graphs.

A step launches hundreds of kernels. On small graphs, the launches take longer than the kernels. A
CUDA graph replays all of them with one launch (Gray, "Getting Started with CUDA Graphs", NVIDIA,
2019). Its inputs and outputs have fixed addresses, so each train graph has a recording, and the
update of the weights has one. All recordings share one pool of memory, because they run in turn.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.training.device import send

GraphLoss = Callable[[Any, Tensor], Tensor]


class RecordedSteps:
    """Run the parts of a training step on a GPU: plainly the first time, and then by a recording.

    A recording needs compiled kernels and initialised libraries, so the first run of a part is not
    recorded. A replay of dropout draws the random numbers that a plain run would draw, because
    torch registers the GPU's default generator with each recording.

    Args:
        model: Network on a GPU. Its forward pass must run the same operations for any configs.
        graph_loss: Function from a graph's inputs and the rows of its configs, (c,) int64 on the
            GPU, to a loss, (). It must not wait for the GPU.

    Attributes:
        scale: Function that scales a loss before its gradients, for float16. Its factor must be a
            tensor on the GPU.
    """

    def __init__(self, model: nn.Module, graph_loss: GraphLoss) -> None:
        self.scale: Callable[[Tensor], Tensor] = lambda loss: loss
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device, self._graph_loss = self._parameters[0].device, graph_loss
        self._pool = torch.cuda.graph_pool_handle()
        self._recordings: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor] | None] = {}
        self._rows: dict[Hashable, Tensor] = {}

    def step_loss(self, samples: Sequence[tuple[Any, NDArray[np.int64]]]) -> Tensor:
        """Add the gradients of the mean loss of graphs to those of the parameters.

        A recording is deleted together with the inputs of its graph.

        Args:
            samples: Inputs of each graph, on the GPU, and (c,) distinct configs of the step.

        Returns:
            () mean loss.
        """
        on_device = send([rows for _, rows in samples], self._device)
        share = 1 / len(samples)
        # Other steps have other combinations of graphs, so each recording is of one graph.
        losses = [
            self._graph(inputs, rows, share)
            for (inputs, _), rows in zip(samples, on_device, strict=True)
        ]
        return torch.stack(losses).mean()

    def _graph(self, inputs: Any, rows: Tensor, share: float) -> Tensor:
        key = id(inputs), len(rows), share
        if key in self._rows:
            self._rows[key].copy_(rows)
        else:
            self._rows[key] = rows.clone()
            for by_key in (self._rows, self._recordings):
                weakref.finalize(inputs, by_key.pop, key, None)
        return self.run(key, partial(self._add, inputs, self._rows[key], share))

    def run(self, key: Hashable, function: Callable[[], Tensor]) -> Tensor:
        """Run a function of tensors at fixed addresses, which returns a tensor."""
        if key not in self._recordings:
            self._recordings[key] = None
            return function()
        recording = self._recordings[key]
        if recording is None:
            graph = torch.cuda.CUDAGraph()
            # Another thread may read the next graph, so the check covers only this thread.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                recording = graph, function()
            self._recordings[key] = recording
        recording[0].replay()
        return recording[1].clone()

    def _add(self, inputs: Any, rows: Tensor, share: float) -> Tensor:
        loss = self._graph_loss(inputs, rows)
        # The forward pass has fixed the types that the backward pass uses.
        with torch.autocast(loss.device.type, enabled=False):
            scaled = self.scale(loss)
            found = torch.autograd.grad(scaled, self._parameters, allow_unused=True)
        pairs = [(p, g) for p, g in zip(self._parameters, found, strict=True) if g is not None]
        for parameter, _ in pairs:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        totals, gradients = zip(*((parameter.grad, g) for parameter, g in pairs), strict=True)
        torch._foreach_add_(totals, gradients, alpha=share)
        return loss.detach()
