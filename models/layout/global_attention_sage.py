"""The layout GNN with attention over nodes beside message passing.

Two rounds of messages reach two edges far; what a config costs also depends on layouts that stand
further apart. Each block of models/layout/cross_config_sage.py gets a second, parallel path in
which every node reads from all others of its config, as in GraphGPS (Rampášek et al., 2022), by
linear attention. That path concerns each config alone, so scores stay independent of how configs
are cut into chunks.
"""

from torch import Tensor, nn

from models.config.networks import CrossConfigSageConfig, GlobalAttentionSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.layers import SageBlock
from models.layout.linear_attention import LinearAttention


class GlobalAttentionBlock(SageBlock):
    """SageBlock(x) + LinearAttention(norm(x)).

    Args:
        config: widths, heads, and whether configs see each other.
    """

    def __init__(self, config: GlobalAttentionSageConfig) -> None:
        super().__init__(
            config.hidden,
            channel_reduction=config.channel_reduction,
            cross_config=config.cross_config,
        )
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = LinearAttention(config.hidden, config.heads)

    def forward(self, x: Tensor, aggregated: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return the block's result, (n, c, h); arguments as in SageBlock."""
        return super().forward(x, aggregated, normaliser) + self._from_all_nodes(x)

    def finish(self, x: Tensor, messages: Tensor, normaliser: Tensor) -> Tensor:
        """Return the block's result, (n, c, h); arguments as in SageBlock."""
        return super().finish(x, messages, normaliser) + self._from_all_nodes(x)

    def _from_all_nodes(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(self.attention_norm(x))
        return result


class GlobalAttentionSage(CrossConfigSage):
    """Score configs of one graph; lower = faster. See CrossConfigSage.

    Args:
        config: widths, depth and heads.
    """

    def make_block(self, config: CrossConfigSageConfig) -> SageBlock:
        """Return one block of the network."""
        assert isinstance(config, GlobalAttentionSageConfig)
        return GlobalAttentionBlock(config)
