"""The blocks of TGraph equal explicit formulas, and its scores depend on the right inputs."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

from models.config.networks import TgraphConfig
from models.layout.inputs import LayoutInputs
from models.layout.tgraph import NOT_CONFIGURABLE, LinearBlock, ResidualBlock, Tgraph


def small_model(**changes: int) -> Tgraph:
    torch.manual_seed(0)
    return Tgraph(TgraphConfig(**{"hidden": 32, **changes})).eval()


def normed(x: Tensor) -> Tensor:
    """Norm over nodes; (c, n, h)."""
    return (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()


def attended(x: Tensor, block: LinearBlock | ResidualBlock) -> Tensor:
    """Channel attention, then a softmax over configs joined to its input; (c, n, 2·inner)."""
    w1, b1, w2, b2 = block.attend.channels.gate.parameters()
    x = x / (1 + (-((x @ w1.T + b1).clamp(min=0) @ w2.T + b2)).exp())
    powers = (x / block.attend.configs.temperature).exp()
    return torch.cat([x, x * powers / powers.sum(dim=0)], dim=2)


def test_linear_block_is_its_formula() -> None:
    torch.manual_seed(1)
    block = LinearBlock(6, 16, cross_config=True).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    weight, bias = block.linear.parameters()
    expected = gelu(attended(normed(x @ weight.T + bias), block))
    torch.testing.assert_close(block(x), expected, atol=1e-9, rtol=1e-7)


def test_residual_block_is_its_formula() -> None:
    torch.manual_seed(2)
    block = ResidualBlock(16, dropout=0.5, cross_config=True).double().eval()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    edges = [(3, 0), (3, 1), (2, 1), (4, 3)]  # user, operand
    h = normed(x)
    means = torch.zeros_like(h)
    for operand in range(5):
        users = [u for u, v in edges if v == operand]
        if users:
            means[:, operand] = h[:, users].mean(dim=1)
    left, right = block.convolution.lin_l, block.convolution.lin_r
    y = means @ left.weight.T + left.bias + h @ right.weight.T
    expected = gelu(x + attended(y, block))
    found = block(x, torch.tensor(edges).T)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-7)


def test_without_cross_config_a_score_depends_on_its_own_config(inputs: LayoutInputs) -> None:
    model = small_model(cross_config=False)
    few, many = (model(inputs, np.arange(n)) for n in (3, 20))
    torch.testing.assert_close(few, many[:3])
    model = small_model()
    few, many = (model(inputs, np.arange(n)) for n in (3, 20))
    assert not torch.allclose(few, many[:3], atol=1e-4)


def test_settings_stand_at_configurable_nodes_only(inputs: LayoutInputs) -> None:
    model = small_model()
    with torch.no_grad():
        model.layout.weight.zero_()
        model.layout.weight[NOT_CONFIGURABLE] = 1
    features = model.features(inputs, inputs.choices(np.arange(4)))[:, :, -18 * 4 :]
    others = torch.ones(features.shape[1], dtype=torch.bool)
    others[inputs.config_ids] = False
    assert (features[:, others] == 1).all() and not features[:, inputs.config_ids].any()


def test_edges_between_fixed_nodes_are_left_out(inputs: LayoutInputs) -> None:
    configurable = set(inputs.config_ids.tolist())
    expected = [e for e in inputs.neighbours.edge_index.tolist() if configurable & set(e)]
    assert small_model().edges(inputs).T.tolist() == expected
    assert len(expected) > 0


def test_scores_are_means_over_shuffled_batches(inputs: LayoutInputs) -> None:
    model = small_model(inference_configs=16, permutations=3)
    n_distinct = len(inputs.first)
    assert n_distinct > 32
    hashes = inputs.configs.content_hashes()[inputs.first]
    total = torch.zeros(n_distinct)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(np.argsort(hashes))
        for batch in np.array_split(order, -(-n_distinct // 16)):
            with torch.inference_mode():
                total[batch] += model(inputs, batch)
    expected = (total / 3).numpy()[inputs.group]
    np.testing.assert_allclose(model.score_all(inputs), expected, atol=1e-6)
