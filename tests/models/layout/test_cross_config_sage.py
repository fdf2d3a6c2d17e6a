"""The layers against slow, obvious formulations of the same equations."""

import numpy as np
import pytest
import torch

from models.config.networks import CrossConfigSageConfig
from models.layout import plain_ops
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.inputs import LayoutInputs, SparseAggregation


def test_slices_of_nodes_change_neither_results_nor_gradients(monkeypatch) -> None:
    torch.manual_seed(1)
    block = SageBlock(CrossConfigSageConfig(hidden=8, channel_reduction=2)).double()
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", 700)  # two nodes of 5 configs and 8 channels
    x, y = torch.randn(2, 6, 5, 8, dtype=torch.float64, requires_grad=True).unbind()
    target = torch.randn(6, 5, 8, dtype=torch.float64)
    wanted = [x, y, *block.channels.parameters(), *block.project.parameters()]
    wanted.append(block.configs.log_temperature)
    plain = x + block.project(block.configs(block.channels(torch.nn.functional.gelu(y))))
    sliced = block(x, y)
    torch.testing.assert_close(sliced, plain)
    expected = torch.autograd.grad((plain * target).sum(), wanted)
    torch.testing.assert_close(torch.autograd.grad((sliced * target).sum(), wanted), expected)


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


def test_opcodes_never_trained_on_share_one_embedding(inputs: LayoutInputs) -> None:
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16)).eval()
    seen = np.asarray([int(inputs.opcode[0])], dtype=np.uint8)
    model.set_known_opcodes(seen)
    before = model.nodes(inputs)
    with torch.no_grad():
        model.opcode.weight[torch.arange(256) != int(seen[0])] += 1.0
        model.opcode.weight[0] -= 1.0
    torch.testing.assert_close(model.nodes(inputs), before)


def test_large_tensors_count_for_more_where_nodes_are_pooled_by_bytes(inputs: LayoutInputs) -> None:
    assert float(inputs.bytes_share.sum()) == pytest.approx(1, abs=1e-5)
    torch.manual_seed(0)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, pool_by_bytes=True)).eval()
    seen = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    x = []
    model.blocks[-1].register_forward_hook(lambda *_: x.append(model.norm(_[2])))
    model(inputs, np.arange(5))
    expected = sum(share * node for share, node in zip(inputs.bytes_share, x[0], strict=True))
    torch.testing.assert_close(seen[0][:, -16:], expected, atol=1e-5, rtol=1e-4)


def test_dropout_scales_channels_of_all_configs_alike() -> None:
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, dropout=0.2))
    assert not model.is_recordable
    torch.manual_seed(0)
    dropped = model._dropped(torch.ones(400, 3, 16))
    assert (dropped == dropped[:, :1]).all()
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.8))
    assert kept.float().mean().item() == pytest.approx(0.8, abs=0.02)


def test_dropped_edges_are_left_out_of_the_means(inputs: LayoutInputs) -> None:
    torch.manual_seed(0)
    left, edges = inputs.with_dropped_edges(0.3).neighbours, inputs.neighbours.edge_index
    torch.manual_seed(0)
    assert torch.equal(left.edge_index, edges[torch.rand(len(edges)) >= 0.3])
    assert 0 < len(left.edge_index) < len(edges)
    plain = SparseAggregation(left.edge_index, len(inputs.opcode), inputs.config_ids)
    matrices = (part.every.joint.matrix.to_dense() for part in (left, plain))
    assert torch.equal(*matrices)


@pytest.mark.parametrize(("dropout", "drop_edges"), [(0.5, 0.0), (0.0, 0.5)])
def test_only_training_drops(inputs: LayoutInputs, dropout: float, drop_edges: float) -> None:
    def scores(training: bool, *drops: float) -> torch.Tensor:
        torch.manual_seed(0)
        keys = dict(zip(("dropout", "drop_edges"), drops, strict=True))
        model = CrossConfigSage(CrossConfigSageConfig(hidden=16, **keys)).train(training)
        return model(inputs, np.arange(5)).detach()

    assert torch.equal(scores(False, dropout, drop_edges), scores(True, 0.0, 0.0))
    dropped = scores(True, dropout, drop_edges)
    assert not torch.allclose(dropped, scores(False, dropout, drop_edges))
    # The seed of a step decides, so a resumed training drops the same.
    assert torch.equal(dropped, scores(True, dropout, drop_edges))


@pytest.mark.parametrize("slice_bytes", [700, plain_ops.SLICE_BYTES])
def test_norm_over_nodes_is_an_instance_norm(
    inputs: LayoutInputs, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", slice_bytes)
    torch.manual_seed(0)
    config = CrossConfigSageConfig(hidden=8, channel_reduction=2, norm="nodes")
    block = SageBlock(config, over_nodes=True)
    with torch.no_grad():
        for parameter in block.norm.parameters():
            parameter.add_(torch.rand(8))
    x = torch.randn(len(inputs.opcode), 3, 8, requires_grad=True)
    target = torch.randn_like(x)
    wanted = [x, *block.norm.parameters(), *block.own.parameters(), block.users.weight]
    normed = torch.nn.functional.instance_norm(x.permute(1, 2, 0), eps=block.norm.eps)
    h = normed.permute(2, 0, 1) * block.norm.weight + block.norm.bias
    _, operands, users = inputs.neighbours.every.joint.matrix.to_dense().chunk(3, dim=1)
    plain = block.own(h) + sum(
        layer(torch.einsum("rn,nch->rch", matrix, h))
        for layer, matrix in ((block.operands, operands), (block.users, users))
    )
    result = block.aggregate(x, inputs.neighbours)
    torch.testing.assert_close(result, plain, atol=1e-4, rtol=1e-4)
    expected = torch.autograd.grad((plain * target).sum(), wanted)
    grads = torch.autograd.grad((result * target).sum(), wanted)
    torch.testing.assert_close(grads, expected, atol=1e-3, rtol=1e-3)
