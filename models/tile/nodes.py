"""How tile GNNs read a kernel's nodes: numeric features, opcode and layout side by side."""

import torch
from torch import Tensor, nn

from data.graphs.graph import N_NODE_FEATURES
from features.layout_codes import N_SYMBOLS, VALUES_PER_TENSOR
from models.layout.cross_config_sage import N_OPCODES
from models.tile.inputs import TileBatch

LAYOUT_WIDTH = 4


class TileNodes(nn.Module):
    """Embeds opcodes and layouts; what tile GNNs are built on.

    Args:
        opcode_width: of an opcode's embedding.
    """

    def __init__(self, opcode_width: int) -> None:
        super().__init__()
        self.opcode = nn.Embedding(N_OPCODES, opcode_width)
        self.layout = nn.Embedding(N_SYMBOLS, LAYOUT_WIDTH)
        self.node_width = N_NODE_FEATURES + opcode_width + VALUES_PER_TENSOR * LAYOUT_WIDTH

    def embed_nodes(self, batch: TileBatch) -> Tensor:
        """Return (n, w) float32 of all kernels' nodes, w = `node_width`."""
        parts = [batch.node_feat, self.opcode(batch.opcode), self.layout(batch.layout).flatten(1)]
        return torch.cat(parts, dim=1)
