"""Linear attention against its quadratic form, and the network that composes it."""

import numpy as np
import pytest
import torch

from models.config.networks import GlobalAttentionSageConfig
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.global_attention_sage import GlobalAttentionSage, LinearAttention
from models.layout.inputs import LayoutInputs


def awake(attention: LinearAttention) -> LinearAttention:
    """Give the last layer, which starts at zero, random weights."""
    torch.nn.init.normal_(attention.out.weight)
    torch.nn.init.normal_(attention.out.bias)
    return attention


@pytest.fixture
def model() -> GlobalAttentionSage:
    torch.manual_seed(0)
    model = GlobalAttentionSage(GlobalAttentionSageConfig(hidden=16)).eval()
    for block in model.blocks:
        awake(block.attention)
    return model


def quadratic(x: np.ndarray, attention: LinearAttention) -> np.ndarray:
    """Weigh every pair of nodes, one config, head and node at a time; (n, c, h)."""
    n_nodes, n_configs, width = x.shape
    per_head = max(1, width // attention.heads)
    w_q, w_k, w_v = np.split(attention.inputs.weight.detach().numpy(), 3)
    gathered = np.zeros((n_nodes, n_configs, attention.heads * per_head))
    for config in range(n_configs):
        q, k, v = (x[:, config] @ weight.T for weight in (w_q, w_k, w_v))
        q, k = (np.where(a > 0, a + 1, np.exp(a)) for a in (q, k))
        for head in range(attention.heads):
            part = slice(head * per_head, (head + 1) * per_head)
            for i in range(n_nodes):
                weights = k[:, part] @ q[i, part]
                gathered[i, config, part] = weights @ v[:, part] / weights.sum()
    return gathered @ attention.out.weight.detach().numpy().T + attention.out.bias.detach().numpy()


@pytest.mark.parametrize("heads", [1, 2, 3, 16])
def test_linear_attention_is_the_quadratic_one(heads: int) -> None:
    torch.manual_seed(1)
    attention = awake(LinearAttention(8, heads)).double()
    x = torch.randn(7, 3, 8, dtype=torch.float64) * 2
    np.testing.assert_allclose(
        attention(x).detach().numpy(), quadratic(x.numpy(), attention), atol=1e-10
    )


def test_a_block_adds_attention_to_message_passing(
    model: GlobalAttentionSage, inputs: LayoutInputs
) -> None:
    block = model.blocks[0]
    x = torch.randn(len(inputs.opcode), 4, 16)
    aggregated = block.aggregate(x, inputs.neighbours)
    expected = SageBlock.forward(block, x, aggregated)
    expected = expected + block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x, aggregated), expected)


def test_an_untrained_network_scores_as_it_would_without_attention(inputs: LayoutInputs) -> None:
    torch.manual_seed(0)
    config = GlobalAttentionSageConfig(hidden=16)
    model = GlobalAttentionSage(config).eval()
    plain = CrossConfigSage(config).eval()
    plain.load_state_dict(
        {name: value for name, value in model.state_dict().items() if ".attention" not in name}
    )
    distinct = np.arange(8)
    torch.testing.assert_close(model(inputs, distinct), plain(inputs, distinct))


@pytest.mark.parametrize("chunk_configs", [1, 7, 32])
def test_scores_do_not_depend_on_the_chunk(
    model: GlobalAttentionSage, inputs: LayoutInputs, chunk_configs: int
) -> None:
    whole = model.score_all(inputs, chunk_configs=10_000)
    assert len(whole) > 32
    chunked = model.score_all(inputs, chunk_configs=chunk_configs)
    np.testing.assert_allclose(chunked, whole, atol=1e-5 * np.abs(whole).max())
