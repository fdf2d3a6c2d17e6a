"""Whole layout networks and their inputs, against plain loops over nodes and edges."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, leaky_relu

from common.metrics import kendall_tau
from data.cache import LRUCache
from data.families import HeldOut
from data.graphs.graph import LayoutGraph, config_hashes
from data.graphs.node_columns import MINOR_TO_MAJOR
from features.pruning import prune_layout_graph
from features.scaling import NodeScaler
from features.statistics.layout import output_bytes
from models.config.networks import BaselineGcnConfig, CrossConfigSageConfig, TgraphConfig
from models.layout import plain_ops
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.gcn import BaselineGcn, symmetric_product
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutTask, sample_loss
from models.layout.tgraph import NOT_CONFIGURABLE, Tgraph

ROWS = np.array([4, 0, 9, 2, 7])


@pytest.fixture
def whole(layout_graph: LayoutGraph, scaler: NodeScaler) -> LayoutInputs:
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler, with_statistics=True)


def means(h: Tensor, edges: list[list[int]], at: int, of: int) -> Tensor:
    """The mean over the nodes at one end of edges, for each node at the other end."""
    result = []
    for node in range(len(h)):
        others = [edge[of] for edge in edges if edge[at] == node]
        result.append(h[others].mean(dim=0) if others else torch.zeros_like(h[0]))
    return torch.stack(result)


def slow_block(block: SageBlock, x: Tensor, edges: list[list[int]]) -> Tensor:
    h = block.norm(x)
    y = block.own(h) + block.operands(means(h, edges, 0, 1)) + block.users(means(h, edges, 1, 0))
    w1, b1, w2, b2 = block.channels.gate.parameters()
    y = gelu(y)
    y = y / (1 + (-((y @ w1.T + b1).clamp(min=0) @ w2.T + b2)).exp())
    parts = [y]
    if block.configs is not None:
        powers = (y / block.configs.log_temperature.exp()).exp()
        parts.append(y * powers / powers.mean(dim=1, keepdim=True))
    return x + block.project(torch.cat(parts, dim=2))


def slow_scores(model: CrossConfigSage, inputs: LayoutInputs, rows: np.ndarray) -> Tensor:
    opcode = [int(code) if model.known_opcode[code] else 0 for code in inputs.opcode]
    parts = inputs.node_feat, model.opcode.weight[opcode], model.layout(inputs.layout).flatten(1)
    nodes, ids = model.node(torch.cat(parts, dim=1)), inputs.config_ids.tolist()
    settings = model.tensor_roles(model.layout(inputs.symbols(rows)).flatten(2))  # (c, k, h)
    values = [
        nodes[node] + (settings[:, ids.index(node)] if node in ids else 0 * settings[:, 0])
        for node in range(len(nodes))
    ]
    x = torch.stack(values)  # (m, c, h)
    for block in model.blocks:
        x = slow_block(block, x, inputs.neighbours.edge_index.tolist())
    x = model.norm(x)
    pooled = [x.mean(dim=0), x.max(dim=0).values, x[ids].mean(dim=0)]
    if model.config.pool_by_bytes:
        pooled.append((x * inputs.bytes_share[:, None, None]).sum(dim=0))
    if model.config.statistics:
        scaled = (inputs.statistics(rows) / model.statistics_scale).clamp(-10, 10)
        pooled.append(gelu(model.statistics[0](scaled)))
    return model.head(torch.cat(pooled, dim=1))[:, 0]


@pytest.mark.parametrize("slice_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize("has_all", [True, False])
def test_scores_and_gradients_of_the_network_are_those_of_loops(
    has_all: bool, slice_bytes: int, whole: LayoutInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", slice_bytes)
    inputs = whole
    keys = dict.fromkeys(("cross_config", "pool_by_bytes", "statistics"), has_all)
    torch.manual_seed(0)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, channel_reduction=4, **keys))
    model.set_known_opcodes(np.unique(whole.opcode.numpy()[::2]).astype(np.uint8))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
        if has_all:  # some of the scaled statistics are beyond the limit
            model.statistics_scale.uniform_(0.001, 2)
    found, expected = model(inputs, ROWS), slow_scores(model, inputs, ROWS)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    weights, parameters = torch.randn(len(ROWS)), [*model.parameters()]
    gradients = zip(
        torch.autograd.grad((found * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
        strict=True,
    )
    for ours, slow in gradients:
        torch.testing.assert_close(
            ours, slow, atol=1e-3 * float(slow.abs().max()) + 1e-7, rtol=1e-3
        )


def test_tgraph_joins_the_features_of_each_node_and_averages_nodes(whole: LayoutInputs) -> None:
    torch.manual_seed(0)
    model = Tgraph(TgraphConfig(hidden=32)).eval()
    symbols, ids = whole.symbols(ROWS), whole.config_ids.tolist()
    features = model.features(whole, whole.choices(ROWS))
    for node in range(0, len(whole.opcode), 5):
        for config in range(len(ROWS)):
            places = torch.full((18,), NOT_CONFIGURABLE)
            settings = symbols[config, ids.index(node)] if node in ids else places
            parts = [
                whole.node_feat[node, : MINOR_TO_MAJOR.start],
                model.layout(whole.layout[node]).flatten(),
                model.opcode(whole.opcode[node]),
                model.layout(settings).flatten(),
            ]
            torch.testing.assert_close(features[config, node], torch.cat(parts))
    x = model.second(model.first(features))
    for block in model.blocks:
        x = block(x, model.edges(whole))
    expected = torch.stack([model.head(sum(nodes) / len(nodes))[0] for nodes in x])
    torch.testing.assert_close(model(whole, ROWS), expected, atol=1e-4, rtol=1e-4)


def test_the_baseline_pools_a_mean_and_two_directions(whole: LayoutInputs) -> None:
    torch.manual_seed(0)
    model = BaselineGcn(BaselineGcnConfig(hidden=16)).eval()
    settings = model.settings(whole, whole.choices(ROWS))
    numbers = [whole.node_feat[:, : MINOR_TO_MAJOR.start], whole.layout / 6]
    nodes = torch.cat([*numbers, model.opcode(whole.opcode)], dim=1)
    scores = []
    for config in range(len(ROWS)):
        own = settings[:, [config]]
        x = leaky_relu(model.first(torch.cat([own[:, 0], nodes], dim=1)), 0.2)[:, None]
        for layer in model.layers:
            product = symmetric_product(whole.neighbours.edge_index, len(whole.opcode))
            x = layer(x, own, product)
        every, some = x[:, 0], x[whole.config_ids, 0]
        sums = [total / total.norm() for total in (sum(every), sum(some))]
        scores.append(model.head(torch.cat([every.mean(dim=0), *sums])))
    torch.testing.assert_close(model(whole, ROWS), torch.cat(scores), atol=1e-5, rtol=1e-4)


def test_inputs_have_merged_runtimes_shares_of_bytes_and_no_layout_numbers(
    layout_graph: LayoutGraph, whole: LayoutInputs
) -> None:
    hashes = config_hashes(layout_graph)
    expected = [layout_graph.runtime_ns[hashes == hashes[row]].mean() for row in whole.first]
    np.testing.assert_allclose(whole.runtimes(np.arange(len(whole.first))), expected)
    assert whole.n_query_configs == 0 and not whole.node_feat[:, MINOR_TO_MAJOR].any()
    sizes = output_bytes(prune_layout_graph(layout_graph, rule="hops-1").node_feat)
    assert np.ptp(sizes) > 0
    np.testing.assert_allclose(whole.bytes_share, sizes / sizes.sum(), rtol=1e-5)


def test_a_step_has_the_mean_loss_of_its_graphs_and_judges_configs_that_it_never_learns(
    layout_graph: LayoutGraph, inputs: LayoutInputs
) -> None:
    config = CrossConfigSageConfig(hidden=16, configs_per_step=12, graphs_per_step=3)
    files = (layout_graph.file,)
    held_out = HeldOut(files, files, by_config=True)
    torch.manual_seed(0)
    model = CrossConfigSage(config).eval()
    task = LayoutTask(files * 3, LRUCache(lambda _: inputs), config, 0, held_out)
    rng = np.random.default_rng(5)
    samples = [task.sampled(0, rng) for _ in range(3)]
    expected = sum(sample_loss(model, *sample) for sample in samples) / 3
    loss, _ = task.step_loss(model, 0, np.random.default_rng(5))
    torch.testing.assert_close(loss, expected)
    seen = [place for _, sample in samples for place in sample.tolist()]
    assert {*seen} <= {*held_out.configs(len(inputs.first), judged=False).tolist()}
    positions, taus = held_out.configs(len(inputs.first), judged=True), []
    assert len(positions) > 2
    for seed in range(4):
        sample = np.random.default_rng(seed).permutation(positions)[:12]
        runtime_ns = inputs.runtime_ns[sample]
        if len({*runtime_ns}) > 1:
            taus.append(kendall_tau(model(inputs, sample).detach().numpy(), runtime_ns))
    with torch.no_grad():
        assert [*task.judged(model, inputs)] == pytest.approx(taus)
