"""The dataset's baseline against dense formulas."""

import numpy as np
import pytest
import torch

from models.config.networks import BaselineGcnConfig
from models.layout.gcn import BaselineGcn, GcnLayer, symmetric_product
from models.layout.inputs import LayoutInputs

EDGES = [(3, 0), (3, 1), (2, 1), (4, 3), (4, 3)]  # the last one reads its operand twice


def small_model() -> BaselineGcn:
    torch.manual_seed(0)
    return BaselineGcn(BaselineGcnConfig(hidden=16)).eval()


def dense_matrix(n_nodes: int) -> torch.Tensor:
    """Write D^(-1/2) (A + Aᵀ + I) D^(-1/2) entry by entry; (n, n)."""
    joined = torch.eye(n_nodes)
    for u, v in EDGES:
        joined[u, v] += 1
        joined[v, u] += 1
    degree = joined.sum(dim=1)
    return joined / torch.outer(degree, degree).sqrt()


def leaky(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 0.2 * x)


def test_layer_and_its_gradient_are_those_of_the_dense_formula() -> None:
    torch.manual_seed(1)
    layer = GcnLayer(8)
    x, settings = torch.randn(6, 2, 8, requires_grad=True), torch.randn(6, 2, 18)
    found = layer(x, settings, symmetric_product(torch.tensor(EDGES), 6))
    dense = torch.einsum("mn,nch->mch", dense_matrix(6), torch.cat([settings, x], dim=2))
    w1, b1, w2, b2 = layer.layers.parameters()
    dense = x + leaky(leaky(dense @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(found, dense)
    target = torch.randn_like(found)
    (gradient,) = torch.autograd.grad((found * target).sum(), x)
    (dense_gradient,) = torch.autograd.grad((dense * target).sum(), x)
    torch.testing.assert_close(gradient, dense_gradient)


def test_settings_are_numbers_at_configurable_nodes(inputs: LayoutInputs) -> None:
    rows = np.arange(4)
    settings = small_model().settings(inputs, inputs.choices(rows))
    chosen = inputs.configs.rows(inputs.first[rows])  # (c, k, 18) values -1..5
    expected = (chosen.astype(np.float64) + 1) / 6 * 100
    found = settings[inputs.config_ids].transpose(0, 1).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    fixed = torch.ones(len(settings), dtype=torch.bool)
    fixed[inputs.config_ids] = False
    assert fixed.any() and not settings[fixed].any()


@pytest.mark.parametrize("hidden", [8, 10**7])
def test_scores_depend_on_their_own_config_alone(inputs: LayoutInputs, hidden: int) -> None:
    model = small_model()
    with torch.inference_mode():
        expected = model(inputs, np.arange(len(inputs.first)))
    # The memory per config sets the batch size: all configs, or one config at a time.
    model.config = model.config.model_copy(update={"hidden": hidden})
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[1])))
    scores = model.score_all(inputs)
    assert (max(sizes) == 1) == (hidden > 8)
    np.testing.assert_allclose(scores, expected.numpy()[inputs.group], atol=1e-5)
