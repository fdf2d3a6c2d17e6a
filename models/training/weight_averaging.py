"""Weights that training keeps beside the live ones: the mean of the last steps', and the best."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@dataclass
class WeightMean:
    """The plain mean of a model's parameters over the steps that were added.

    A mean over the last share of the steps (Izmailov et al., "Averaging Weights Leads to Wider
    Optima and Better Generalization", 2018) rather than an exponential one: the share means the
    same in a run of any length, while an exponential mean's decay has to be tuned to it, and it
    keeps a trace of the first, bad weights.

    Attributes:
        count: how many steps are in it.
        tensors: the mean of each parameter by name; empty before the first.
    """

    count: int = 0
    tensors: Tensors = field(default_factory=dict)

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Take in the parameters as they are now."""
        self.count += 1
        for name, parameter in model.named_parameters():
            if name in self.tensors:
                self.tensors[name] += (parameter - self.tensors[name]) / self.count
            else:
                self.tensors[name] = parameter.detach().clone()

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Let `model` have the mean weights while the block runs; its own where there are none."""
        live = {name: value.detach().clone() for name, value in model.named_parameters()}
        put(self.tensors, model)
        try:
            yield
        finally:
            put(live, model)


@dataclass
class BestWeights:
    """The weights that ranked held-out data best.

    Attributes:
        value: what they scored; None before the first.
        waited: how many evaluations since then were no better.
        tensors: parameters and buffers by name.
    """

    value: float | None = None
    waited: int = 0
    tensors: Tensors = field(default_factory=dict)

    def offer(self, value: float, model: nn.Module) -> None:
        """Keep the model's weights if `value` is higher than all before."""
        if self.value is None or value > self.value:
            tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            self.value, self.waited, self.tensors = value, 0, tensors
        else:
            self.waited += 1


@torch.no_grad()
def put(tensors: Tensors, model: nn.Module) -> None:
    """Copy `tensors` into the parameters and buffers of their names."""
    own = model.state_dict()
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
