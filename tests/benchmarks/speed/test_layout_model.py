"""The plain model and ours are the same function."""

import numpy as np
import pytest
import torch

from benchmarks.speed.layout_model import plain_copy, plain_names
from data.graphs.graph import LayoutGraph
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import layout_inputs

CONFIGS = [
    CrossConfigSageConfig(hidden=16, blocks=blocks, cross_config=cross, channel_reduction=reduction)
    for blocks, cross, reduction in [(1, True, 8), (2, True, 1), (3, True, 8), (2, False, 8)]
]


@pytest.mark.parametrize("rule", ["hops-1", "hops-2", "none"])
@pytest.mark.parametrize("config", CONFIGS)
def test_scores_and_gradients_equal_the_plain_models(
    config: CrossConfigSageConfig, rule: str, layout_graph: LayoutGraph
) -> None:
    torch.manual_seed(0)
    ours = CrossConfigSage(config)
    plain = plain_copy(ours)
    with torch.no_grad():  # a temperature of 1 would hide mistakes
        for name, parameter in [*ours.named_parameters(), *plain.named_parameters()]:
            if name.endswith("log_temperature"):
                parameter.fill_(-0.4)
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    inputs = layout_inputs(layout_graph, rule=rule, scaler=scaler)
    target = torch.linspace(-1, 3, 9)
    scores = ours(inputs, np.arange(9))
    expected = plain(inputs, np.arange(9))
    assert expected.std() > 1e-4
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    (scores * target).sum().backward()
    (expected * target).sum().backward()
    gradients = plain_names({name: one.grad for name, one in ours.named_parameters()})
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        difference = (gradients[name] - parameter.grad).norm()
        assert difference < 1e-3 * parameter.grad.norm() + 1e-5, name
