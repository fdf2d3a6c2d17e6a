"""The winners' TGraph and the dataset's baseline against explicit formulas."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, leaky_relu

from data.graphs.node_columns import MINOR_TO_MAJOR
from models.config.networks import BaselineGcnConfig, TgraphConfig
from models.layout.gcn import BaselineGcn, GcnLayer, symmetric_product
from models.layout.inputs import LayoutInputs
from models.layout.tgraph import NOT_CONFIGURABLE, LinearBlock, ResidualBlock, Tgraph

# (user, operand). The last node reads its operand twice.
EDGES = [(3, 0), (3, 1), (2, 1), (4, 3), (4, 3)]
ROWS = np.array([4, 0, 9, 2, 7])


def small_tgraph(**changes: int) -> Tgraph:
    torch.manual_seed(0)
    return Tgraph(TgraphConfig(**{"hidden": 32, **changes})).eval()


def small_gcn() -> BaselineGcn:
    torch.manual_seed(0)
    return BaselineGcn(BaselineGcnConfig(hidden=16)).eval()


def instance_norm(x: Tensor) -> Tensor:
    """Norm over nodes; (c, n, h)."""
    return (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()


def attention(x: Tensor, block: LinearBlock | ResidualBlock) -> Tensor:
    """Channel attention, then a softmax over configs joined to its input; (c, n, 2·inner)."""
    w1, b1, w2, b2 = block.attend.channels.gate.parameters()
    x = x / (1 + (-((x @ w1.T + b1).clamp(min=0) @ w2.T + b2)).exp())
    powers = (x / block.attend.configs.temperature).exp()
    return torch.cat([x, x * powers / powers.sum(dim=0)], dim=2)


def test_tgraph_blocks_are_their_formulas() -> None:
    torch.manual_seed(1)
    first = LinearBlock(6, 16, cross_config=True).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    weight, bias = first.linear.parameters()
    formula = gelu(attention(instance_norm(x @ weight.T + bias), first))
    torch.testing.assert_close(first(x), formula, atol=1e-9, rtol=1e-7)

    block = ResidualBlock(16, dropout=0.5, cross_config=True).double().eval()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    h = instance_norm(x)
    means = torch.zeros_like(h)
    for operand in range(5):
        users = [u for u, v in EDGES if v == operand]
        if users:
            means[:, operand] = h[:, users].mean(dim=1)
    left, right = block.convolution.lin_l, block.convolution.lin_r
    y = means @ left.weight.T + left.bias + h @ right.weight.T
    formula = gelu(x + attention(y, block))
    torch.testing.assert_close(block(x, torch.tensor(EDGES).T), formula, atol=1e-9, rtol=1e-7)


def test_tgraph_joins_the_features_of_each_node_and_averages_nodes(inputs: LayoutInputs) -> None:
    model = small_tgraph()
    symbols, ids = inputs.symbols(ROWS), inputs.config_ids.tolist()
    features = model.features(inputs, inputs.choices(ROWS))
    assert 0 < len(ids) < len(inputs.opcode)
    for node in range(len(inputs.opcode)):
        for config in range(len(ROWS)):
            places = torch.full((18,), NOT_CONFIGURABLE)
            settings = symbols[config, ids.index(node)] if node in ids else places
            parts = [
                inputs.node_feat[node, : MINOR_TO_MAJOR.start],
                model.layout(inputs.layout[node]).flatten(),
                model.opcode(inputs.opcode[node]),
                model.layout(settings).flatten(),
            ]
            torch.testing.assert_close(features[config, node], torch.cat(parts))
    edges = [e for e in inputs.neighbours.edge_index.tolist() if {*ids} & {*e}]
    assert model.edges(inputs).T.tolist() == edges and edges
    x = model.second(model.first(features))
    for block in model.blocks:
        x = block(x, model.edges(inputs))
    scores = torch.stack([model.head(sum(nodes) / len(nodes))[0] for nodes in x])
    torch.testing.assert_close(model(inputs, ROWS), scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cross_config", [True, False])
def test_tgraph_scores_depend_on_the_batch_by_attention(
    inputs: LayoutInputs, cross_config: bool
) -> None:
    model = small_tgraph(cross_config=cross_config)
    few, many = (model(inputs, np.arange(n)) for n in (3, 20))
    assert torch.allclose(few, many[:3], atol=1e-4) != cross_config


def test_tgraph_averages_shuffled_batches(inputs: LayoutInputs) -> None:
    model = small_tgraph(inference_configs=16, permutations=3)
    n_distinct = len(inputs.first)
    assert n_distinct > 32
    hashes = inputs.configs.content_hashes()[inputs.first]
    total = torch.zeros(n_distinct)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(np.argsort(hashes))
        for batch in np.array_split(order, -(-n_distinct // 16)):
            with torch.inference_mode():
                total[batch] += model(inputs, batch)
    means = (total / 3).numpy()[inputs.group]
    np.testing.assert_allclose(model.score_all(inputs), means, atol=1e-6)


def test_gcn_layer_and_its_gradient_are_those_of_the_dense_formula() -> None:
    torch.manual_seed(1)
    layer = GcnLayer(8)
    x, settings = torch.randn(6, 2, 8, requires_grad=True), torch.randn(6, 2, 18)
    matrix = torch.eye(6)
    for u, v in EDGES:
        matrix[u, v] += 1
        matrix[v, u] += 1
    degree = matrix.sum(dim=1)
    matrix = matrix / torch.outer(degree, degree).sqrt()
    dense = torch.einsum("mn,nch->mch", matrix, torch.cat([settings, x], dim=2))
    w1, b1, w2, b2 = layer.layers.parameters()
    dense = x + leaky_relu(leaky_relu(dense @ w1.T + b1, 0.2) @ w2.T + b2, 0.2)
    sparse = layer(x, settings, symmetric_product(torch.tensor(EDGES), 6))
    torch.testing.assert_close(sparse, dense)
    target = torch.randn_like(sparse)
    gradients = (torch.autograd.grad((y * target).sum(), x)[0] for y in (sparse, dense))
    torch.testing.assert_close(*gradients)


def test_gcn_pools_a_mean_and_two_directions(inputs: LayoutInputs) -> None:
    model = small_gcn()
    layouts = torch.from_numpy(inputs.configs.rows(inputs.first[ROWS]))  # (c, k, 18) values -1..5
    settings = torch.zeros(len(inputs.opcode), len(ROWS), 18)
    settings[inputs.config_ids] = (layouts.float().transpose(0, 1) + 1) / 6 * 100
    numbers = [inputs.node_feat[:, : MINOR_TO_MAJOR.start], inputs.layout / 6]
    nodes = torch.cat([*numbers, model.opcode(inputs.opcode)], dim=1)
    product = symmetric_product(inputs.neighbours.edge_index, len(inputs.opcode))
    scores = []
    for config in range(len(ROWS)):
        setting = settings[:, [config]]
        x = leaky_relu(model.first(torch.cat([setting[:, 0], nodes], dim=1)), 0.2)[:, None]
        for layer in model.layers:
            x = layer(x, setting, product)
        sums = [sum(x[:, 0]), sum(x[inputs.config_ids, 0])]
        directions = [total / total.norm() for total in sums]
        scores.append(model.head(torch.cat([x[:, 0].mean(dim=0), *directions])))
    torch.testing.assert_close(model(inputs, ROWS), torch.cat(scores), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("hidden", [8, 10**7])
def test_gcn_scores_do_not_depend_on_the_chunk(inputs: LayoutInputs, hidden: int) -> None:
    model = small_gcn()
    with torch.inference_mode():
        scores = model(inputs, np.arange(len(inputs.first))).numpy()[inputs.group]
    # The memory per config sets the batch size: all configs, or one config at a time.
    model.config = model.config.model_copy(update={"hidden": hidden})
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[1])))
    np.testing.assert_allclose(model.score_all(inputs), scores, atol=1e-5)
    assert (max(sizes) == 1) == (hidden > 8)
