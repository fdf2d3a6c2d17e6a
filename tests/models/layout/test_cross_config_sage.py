"""The layout GNN against loops over nodes and edges, in chunks, and with random drops."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig
from models.layout import plain_ops
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.inputs import LayoutInputs, layout_inputs

ROWS = np.array([4, 0, 9, 2, 7])


def neighbour_means(h: Tensor, edges: list[list[int]], at: int, of: int) -> Tensor:
    """The mean over the nodes at one end of edges, for each node at the other end."""
    result = []
    for node in range(len(h)):
        neighbours = [edge[of] for edge in edges if edge[at] == node]
        result.append(h[neighbours].mean(dim=0) if neighbours else torch.zeros_like(h[0]))
    return torch.stack(result)


def slow_block(block: SageBlock, x: Tensor, edges: list[list[int]]) -> Tensor:
    h = block.norm(x)
    if block.over_nodes:
        unit = (x - x.mean(dim=0)) / (x.var(dim=0, correction=0) + block.norm.eps).sqrt()
        h = unit * block.norm.weight + block.norm.bias
    y = block.own(h) + block.operands(neighbour_means(h, edges, 0, 1))
    y = gelu(y + block.users(neighbour_means(h, edges, 1, 0)))
    w1, b1, w2, b2 = block.channels.gate.parameters()
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
@pytest.mark.parametrize("variant", ["channels", "nodes", "alone"])
def test_scores_and_gradients_of_the_network_are_those_of_loops(
    variant: str,
    slice_bytes: int,
    layout_graph: LayoutGraph,
    scaler: NodeScaler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", slice_bytes)
    inputs = layout_inputs(layout_graph, rule="hops-1", scaler=scaler, with_statistics=True)
    keys = {"cross_config": True, "pool_by_bytes": True, "statistics": True, "norm": variant}
    if variant == "alone":  # neither attention across configs nor further inputs of the head
        keys = {"cross_config": False}
    torch.manual_seed(0)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, channel_reduction=4, **keys))
    model.set_known_opcodes(np.unique(inputs.opcode.numpy()[::2]).astype(np.uint8))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
        if model.reads_statistics:  # some of the scaled statistics are beyond the limit
            model.statistics_scale.uniform_(0.001, 2)
    scores, slow = model(inputs, ROWS), slow_scores(model, inputs, ROWS)
    torch.testing.assert_close(scores, slow, atol=2e-5, rtol=1e-4)
    weights, parameters = torch.randn(len(ROWS)), [*model.parameters()]
    gradients = torch.autograd.grad((scores * weights).sum(), parameters)
    slow_gradients = torch.autograd.grad((slow * weights).sum(), parameters)
    for gradient, exact in zip(gradients, slow_gradients, strict=True):
        tolerance = 1e-3 * float(exact.abs().max()) + 1e-7
        torch.testing.assert_close(gradient, exact, atol=tolerance, rtol=1e-3)


@pytest.mark.parametrize("norm", ["channels", "nodes"])
@pytest.mark.parametrize("chunk_configs", [1, 7, 32, 200])
@pytest.mark.parametrize("kept_share", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_scores_do_not_depend_on_the_chunk_nor_on_what_is_kept(
    inputs: LayoutInputs, chunk_configs: int, norm: str, kept_share: float, blocks: int
) -> None:
    torch.manual_seed(0)
    config = CrossConfigSageConfig(hidden=16, pool_by_bytes=True, blocks=blocks, norm=norm)
    model = CrossConfigSage(config).eval()
    with torch.no_grad():
        for block in model.blocks:
            assert block.configs is not None
            block.configs.log_temperature.fill_(-0.7)
    whole = model.score_all(inputs, chunk_configs=10_000)
    n_distinct = len(inputs.first)
    assert n_distinct > 32
    all_bytes = 2 * 4 * len(inputs.opcode) * n_distinct * config.hidden
    kept_bytes = int(kept_share * all_bytes)
    chunked = model.score_all(inputs, chunk_configs=chunk_configs, kept_bytes=kept_bytes)
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_dropout_scales_channels_of_all_configs_alike() -> None:
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, dropout=0.2))
    torch.manual_seed(0)
    x = model._drop_channels(torch.ones(400, 3, 16))
    assert (x == x[:, :1]).all()
    torch.testing.assert_close(x[x > 0], torch.full_like(x[x > 0], 1 / 0.8))
    assert (x > 0).float().mean().item() == pytest.approx(0.8, abs=0.02)


def test_only_training_drops(inputs: LayoutInputs) -> None:
    def scores(training: bool, dropout: float) -> torch.Tensor:
        torch.manual_seed(0)
        model = CrossConfigSage(CrossConfigSageConfig(hidden=16, dropout=dropout)).train(training)
        return model(inputs, np.arange(5)).detach()

    assert torch.equal(scores(False, 0.5), scores(True, 0.0))
    with_drops = scores(True, 0.5)
    assert not torch.allclose(with_drops, scores(False, 0.5))
    # The seed of a step decides, so a resumed training drops the same.
    assert torch.equal(with_drops, scores(True, 0.5))
