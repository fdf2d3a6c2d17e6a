"""The layout GNN with attention over nodes beside message passing.

Two rounds of messages reach two edges far; what a config costs also depends on layouts further
apart. Each block of models/layout/cross_config_sage.py gets a parallel path in which every node
reads from all others of its config, as in GraphGPS (Rampášek et al., 2022), by linear attention.
That path concerns each config alone, so scores stay independent of how configs are chunked.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from models.config.networks import CrossConfigSageConfig, GlobalAttentionSageConfig, LayoutGnnConfig
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.training.precision import by_own_types

# Far below what the sum of positive weights comes to; keeps a division by zero away.
LEAST_WEIGHT = 1e-6


class LinearAttention(nn.Module):
    """Let each node read from all others of its config.

    Node i gets, per head, sum over nodes j of w_ij v_j with w_ij proportional to
    phi(q_i) · phi(k_j) and adding up to 1 over j, where q, k and v are linear in x and
    phi = elu + 1 (Katharopoulos et al., "Transformers are RNNs", 2020). Because phi(q_i) does not
    depend on j, the sums of phi(k_j) v_jᵀ and phi(k_j) are taken once for all i.

    The last layer starts at zero, so that a network begins as it would be without attention. Each
    of the heads has h / heads channels, rounded down.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * max(1, width // heads)
        self.inputs = nn.Linear(width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, c, h) to (n, c, h); configs do not see each other."""
        n_nodes, n_configs, _ = x.shape
        parts = nn.functional.linear(x, self.inputs.weight.to(x.dtype))
        parts = parts.view(n_nodes, n_configs, 3, self.heads, -1)
        q, k, v = parts.unbind(dim=2)  # (n, c, heads, d)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        share = n_nodes**-0.5  # of both sides: neither they nor their sum leave half precision
        summary = torch.einsum("nahd,nahe->ahde", k * share, v * share)  # (c, heads, d, d)
        read = torch.einsum("nahd,ahde->nahe", q, summary)
        weight = torch.einsum("nahd,ahd->nah", q, k.mean(dim=0))
        read = (read / weight.clamp(min=LEAST_WEIGHT)[..., None]).flatten(2)
        return nn.functional.linear(read, self.out.weight.to(x.dtype), self.out.bias.to(x.dtype))


class GlobalAttentionBlock(SageBlock):
    """SageBlock(x) + LinearAttention(norm(x))."""

    def __init__(self, config: CrossConfigSageConfig) -> None:
        super().__init__(config)
        assert isinstance(config, GlobalAttentionSageConfig)
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = LinearAttention(config.hidden, config.heads)

    @by_own_types
    def forward(self, x: Tensor, aggregated: Tensor) -> Tensor:
        return super().forward(x, aggregated) + self._read(x)

    @by_own_types
    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        return super().finish(x, messages, normaliser) + self._read(x)

    def _read(self, x: Tensor) -> Tensor:
        norm = self.attention_norm
        gain, shift = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        read: Tensor = self.attention(nn.functional.layer_norm(x, x.shape[-1:], gain, shift))
        return read


class GlobalAttentionSage(CrossConfigSage):
    Config: ClassVar[type[LayoutGnnConfig]] = GlobalAttentionSageConfig
    Block: ClassVar[type[SageBlock]] = GlobalAttentionBlock
