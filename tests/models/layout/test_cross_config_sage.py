"""The layers against slow, obvious formulations of the same equations."""

import numpy as np
import pytest
import torch

from models.config.networks import CrossConfigSageConfig
from models.layout import plain_ops
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.inputs import LayoutInputs


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


@pytest.mark.parametrize("pool_by_bytes", [False, True])
@pytest.mark.parametrize("chunk_configs", [1, 7, 32, 200])
@pytest.mark.parametrize("kept_share", [0, 0.3, 0.7, 1])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_scores_do_not_depend_on_the_chunk_nor_on_what_is_kept(
    inputs: LayoutInputs, chunk_configs: int, pool_by_bytes: bool, kept_share: float, blocks: int
) -> None:
    torch.manual_seed(0)
    config = CrossConfigSageConfig(hidden=16, pool_by_bytes=pool_by_bytes, blocks=blocks)
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
