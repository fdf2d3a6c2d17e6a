"""The mean of weights over steps, lent to the model for a while."""

import pytest
import torch
from torch import nn

from models.training.weight_averaging import WeightMean


def test_a_model_has_its_own_weights_again_though_judging_failed() -> None:
    model, mean = nn.Linear(2, 1), WeightMean()
    mean.add(model)
    own = model.weight.detach() + 1
    with torch.no_grad():
        model.weight.copy_(own)
    with pytest.raises(KeyboardInterrupt), mean.in_place_of(model):
        assert not torch.equal(model.weight, own)
        raise KeyboardInterrupt
    assert torch.equal(model.weight, own)
